"""Kernels of the installed plugins against float64, at small shapes and at real sizes.

Suffixes: T tokens, H heads, C head dim, E rotated pairs, O rows, I columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inferno.contracts import OPS, AttentionBackend, AttentionNeed, KernelNeed, lazy
from inferno.ops import reference
from inferno.ops.draws import DrawParams, Penalties
from inferno.testing.paged_steps import STEPS, run_steps
from inferno_gpu_report.job import Job
from inferno_gpu_report.products import Matrix, matrices

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}
EIGHT_BITS = {"int8": 0.03, "fp8_e4m3": 0.12}
"""Tolerances by dtype, as in the conformance kit: shares of 1 + the exact value."""
PRODUCT = 0.02
"""Tolerance of a packed product, as a share of the product of the norms. Kernels may round
activations."""


def small(job: Job) -> None:
    """Check every op, matrix product and compatible attention backend."""
    _ops(job)
    _products(job, rows=256, columns=256, tokens=(1, 33))
    for backend, need in _attention(job, list(_small_needs(job))):
        _steps(job, backend, need, STEPS, padding=True)


def sanitized(job: Job) -> None:
    """Run each kernel of the plugins once. compute-sanitizer is slow, so torch's own kernels are
    left out."""
    _ops(job)
    for matrix in matrices(job, rows=256, columns=256):
        if matrix.has_kernel:
            job.attempt(matrix.name, partial(_product, job, matrix, (3,)))
    distributions = {offer.distribution for offer in job.catalog.of("inferno_kernels")}
    attention = job.catalog.of("inferno_attention_backends")
    names = {offer.item.name for offer in attention if offer.distribution in distributions}
    for backend, need in _attention(job, list(_few_needs(job))):
        if backend.name in names:
            _steps(job, backend, need, STEPS[:3], padding=True)


def real(job: Job) -> None:
    """Check prompts and single tokens of some hundred tokens, and products of a layer's size."""
    size = 256 if job.small else 4096
    _products(job, rows=size, columns=size, tokens=(1, 16, 64))
    lengths = (30, 17) if job.small else (1023, 840, 100, 517, 2000, 64, 1, 333)
    steps = [lengths, (1,) * len(lengths), (1,) * len(lengths)]
    for backend, need in _attention(job, list(_real_needs(job))):
        _steps(job, backend, need, steps, longest=max(lengths) + 3, compared=2)


def _need(job: Job, heads: int, kv_heads: int, dim: int, **more: Any) -> AttentionNeed:
    given = {"scale": dim**-0.5, "dtype": "bfloat16", "device": job.device, **more}
    return AttentionNeed(num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, **given)


def _small_needs(job: Job) -> Iterator[AttentionNeed]:
    for dtype in ("bfloat16", "float16", "float32"):
        yield _need(job, 8, 2, 64, dtype=dtype)
    yield from _few_needs(job)
    yield _need(job, 6, 2, 32, soft_cap=3.0, sliding_window=5)
    yield _need(job, 6, 3, 16, sinks=True, sliding_window=5)
    yield _need(job, 4, 2, 24, value_dim=16)


def _few_needs(job: Job) -> Iterator[AttentionNeed]:
    yield _need(job, 16, 8, 128)
    yield _need(job, 4, 1, 40, latent_dim=32)
    for kind in EIGHT_BITS:
        yield _need(job, 8, 2, 64, cache_dtype=kind)
        yield _need(job, 8, 2, 64, cache_dtype=kind, waves=True)


def _real_needs(job: Job) -> Iterator[AttentionNeed]:
    yield _need(job, 16, 8, 128)
    yield _need(job, 32, 8, 128)
    yield _need(job, 16, 8, 128, sliding_window=128)
    yield _need(job, 16, 1, 576, latent_dim=512)
    for kind in EIGHT_BITS:
        yield _need(job, 16, 8, 128, cache_dtype=kind)


def _attention(
    job: Job, needs: Sequence[AttentionNeed]
) -> Iterator[tuple[AttentionBackend, AttentionNeed]]:
    """Yield the needs that each backend serves, the preferred backend first."""
    for backend, need in itertools.product(job.attention_backends(), needs):
        job.check_time(f"attention of {backend.name}")
        if need.features <= backend.features and backend.refuses(need) is None:
            yield backend, need


def _steps(
    job: Job, backend: AttentionBackend, need: AttentionNeed, steps: Any, **options: Any
) -> None:
    name = f"{backend.name}: {described(need)}"

    def check() -> None:
        worst = 0.0
        for ours_THC, theirs_THC in run_steps(backend, need, page_of(backend), steps, **options):
            if len(ours_THC):
                exact_THC = theirs_THC.to(ours_THC.device)
                lost_THC = (ours_THC.double() - exact_THC).abs() / (1 + exact_THC.abs())
                worst = max(worst, float(lost_THC.max()))
        job.error(name, worst, EIGHT_BITS.get(need.cache_dtype, TOLERANCE[need.dtype]))

    job.attempt(name, check, backend.name)


def described(need: AttentionNeed) -> str:
    """Return heads, sizes, dtype and features of a need."""
    parts = [f"{need.num_heads}/{need.num_kv_heads} heads of {need.head_dim}", need.dtype]
    return ", ".join([*parts, *sorted(need.features - {"cache_dtype"}), *_cache(need)])


def _cache(need: AttentionNeed) -> list[str]:
    return [] if need.cache_dtype == "auto" else [f"cache {need.cache_dtype}"]


def page_of(backend: AttentionBackend) -> int:
    """Return its preferred number of tokens per block."""
    fits = backend.block_size % backend.block_multiple == 0
    return backend.block_size if fits else backend.block_multiple


def _ops(job: Job) -> None:
    """Compare the providers' ops with torch's definitions, computed in float32."""
    device = job.device.torch_name

    def random(*shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.randn(*shape, generator=generator).to(device, torch.bfloat16)

    angles_TE = random(5, 64).float()
    inputs: dict[str, tuple[Any, ...]] = {
        "rms_norm": (random(7, 1000), random(1000), 1e-6),
        "add_rms_norm": (random(7, 1024), random(7, 1024), random(1024), 1e-6),
        "norm_rope": (random(5, 3, 128), random(128), 1e-6, angles_TE.cos(), angles_TE.sin()),
        "silu_mul": (random(5, 1536), random(5, 1536)),
        "gather": (random(40, 256), torch.arange(0, 40, 3, device=device)),
        "argmax": (random(5, 5000),),
        "adjust": (random(3, 5000), _penalties(device)),
        "draw": (random(3, 5000) * 4, _draws(device)),
    }
    for offer in job.catalog.of("inferno_kernels"):
        for op in OPS:
            need = KernelNeed(op=op, dtype="bfloat16", device=job.device)
            if op in offer.item.ops and offer.item.refuses(need) is None:
                run = lazy.resolved(offer.item.ops[op])
                name = f"{offer.item.name}: {op}"
                job.attempt(name, partial(_op, job, name, run, op, inputs[op]))


def _penalties(device: str) -> Penalties:
    counts_RV = torch.arange(4 * 5000, device=device, dtype=torch.int32).view(4, 5000) % 3
    floats = (torch.tensor(each, device=device) for each in ([1.5] * 3, [0.5] * 3, [0.25] * 3))
    return Penalties(torch.tensor([2, 0, 3], device=device), counts_RV, counts_RV, *floats)


def _draws(device: str) -> DrawParams:
    """From all tokens, from the best 40, and from the likely ones."""
    floats = (torch.tensor(each, device=device) for each in ([1.0, 0.8, 2.0], [0.01, 0.0, 0.0]))
    integers = (
        torch.tensor(each, device=device)
        for each in ([5000, 40, 5000], [2**31, 2**31, 2**31 * 9 // 10], [10**9, 2 * 10**9, 7])
    )
    return DrawParams(*floats, *integers)


def _op(job: Job, name: str, run: Any, op: str, given: tuple[Any, ...]) -> None:
    wide = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]
    output, exact = run(*given), getattr(reference, op)(*wide)
    pairs = zip(output, exact, strict=True) if isinstance(output, tuple) else [(output, exact)]
    worst = 0.0
    for ours, theirs in pairs:
        lost = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        worst = max(worst, float(lost))
    job.error(name, worst, TOLERANCE["bfloat16"])


def _products(job: Job, rows: int, columns: int, tokens: tuple[int, ...]) -> None:
    for matrix in matrices(job, rows, columns):
        job.check_time(f"products with {matrix.name}")
        job.attempt(matrix.name, partial(_product, job, matrix, tokens))


def _product(job: Job, matrix: Matrix, tokens: tuple[int, ...]) -> None:
    device = job.device.torch_name
    weight = matrix.build()
    rows, columns = weight.shape
    exact_OI = weight.rows(torch.arange(rows, device=device)).double()
    weight = matrix.bound(weight)
    for count in tokens:
        generator = torch.Generator().manual_seed(count)
        x_TI = torch.randn(count, columns, generator=generator).to(device, torch.bfloat16)
        exact_TO = x_TI.double() @ exact_OI.T
        size_TO = x_TI.double().norm(dim=1)[:, None] * exact_OI.norm(dim=1)
        lost_TO = (weight.matmul(x_TI).double() - exact_TO).abs() / size_TO
        job.error(f"{matrix.name}: {count} x {columns} x {rows}", float(lost_TO.max()), PRODUCT)
