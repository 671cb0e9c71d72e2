"""Attention in decode: the bandwidth at which each backend reads keys and values.

Suffixes: T tokens, H query heads, K key/value heads, C head dim.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import torch

from inferno.contracts import DTYPE_BYTES, Attend, AttentionBackend, AttentionNeed, CacheDType
from inferno.core.kvcache import KVCache
from inferno.nn.batch import Batch
from inferno.testing.paged_steps import batch_of, block_tables
from inferno_gpu_report.checks import page_of
from inferno_gpu_report.declared import variants_of
from inferno_gpu_report.job import Job
from inferno_gpu_report.timing import timed

_COLD = 256 << 20
"""Total bytes of keys and values in all layers: more than fits in a device's caches."""
_PAGES = (16, 64, 256)
_MEAN = 840
"""Mean context of nano-vllm's benchmark, in tokens."""
_UNEVEN: Mapping[str, Sequence[int]] = {
    "1 of 65536 and 31 of 500": [65_536, *[500] * 31],
    "1 of 100000": [100_000],
    "32 of 2000": [2000] * 32,
    "128 of 100 to 2005": [100 + 15 * i for i in range(128)],
}
_LONGEST = 131_072
"""Tokens that the block tables of these have room for: how long contexts are, a step's shape does
not say."""


def decode(job: Job) -> None:
    """Report the bandwidth of each compatible backend by page size and number of sequences, then
    that of its variants for tuning. Contexts are ragged: between half and one and a half times the
    mean."""
    need = _need(job)
    counts = (1, 4) if job.small else (256, 32, 1)
    willing = _willing(job, need)
    for backend, count in itertools.product(willing, counts):
        for page in _PAGES:
            if page % backend.block_multiple == 0:
                job.check_time(f"{backend.name} at {count} sequences")
                name = f"{backend.name}, {count} sequences, pages of {page}"
                builds: dict[str, Callable[[], Attend]] = {"": partial(backend.build, need)}
                step = _ragged(job, count), page
                run = partial(_measure, job, name, backend, need, *step, builds)
                job.attempt(name, run, backend.name)
    for backend, count in itertools.product(willing, counts):
        variants = variants_of(backend.name)
        if variants is None:
            continue
        for page in (16, 64):
            job.check_time(f"variants of {backend.name}")
            builds = dict(variants(need, page))
            name = f"{backend.name}, {count} sequences, pages of {page}"
            run = partial(_measure, job, name, backend, need, _ragged(job, count), page, builds)
            job.attempt(name, run, backend.name)


def contexts(job: Job) -> None:
    """Report the preferred backend's bandwidth where some contexts are much longer than others, in
    block tables for long ones, and over caches of 8 bits."""
    need = _need(job)
    for backend in _willing(job, need)[:1]:
        page = page_of(backend)
        longest = 256 if job.small else _LONGEST
        for name, lengths in _UNEVEN.items():
            if job.small:
                name, lengths = f"{name}, of which 1 / 500", [max(1, n // 500) for n in lengths]
            builds = {"": partial(backend.build, need)}
            job.check_time(name)
            run = partial(_measure, job, name, backend, need, lengths, page, builds, longest)
            job.attempt(name, run, backend.name)
        kinds: tuple[CacheDType, ...] = ("auto", "int8", "fp8_e4m3")
        for kind in kinds:
            variant = attrs.evolve(need, cache_dtype=kind)
            if variant.features <= backend.features and backend.refuses(variant) is None:
                lengths = _ragged(job, 4 if job.small else 256)
                name = f"{len(lengths)} ragged, cache {'bfloat16' if kind == 'auto' else kind}"
                builds = {"": partial(backend.build, variant)}
                job.check_time(name)
                run = partial(_measure, job, name, backend, variant, lengths, page, builds)
                job.attempt(name, run, backend.name)


def _need(job: Job) -> AttentionNeed:
    return AttentionNeed(
        num_heads=4 if job.small else 16,
        num_kv_heads=2 if job.small else 8,
        head_dim=32 if job.small else 128,
        scale=0.1,
        dtype="bfloat16",
        device=job.device,
    )


def _willing(job: Job, need: AttentionNeed) -> list[AttentionBackend]:
    """Return the backends that serve a need, the preferred one first."""
    willing = []
    for backend in job.attention_backends():
        if (reason := backend.refuses(need)) is not None:
            job.note(f"{backend.name}: {reason}")
        else:
            willing.append(backend)
    job.fact("heads", f"{need.num_heads} query, {need.num_kv_heads} key/value, of {need.head_dim}")
    return willing


def _ragged(job: Job, count: int) -> list[int]:
    mean, draw = (40 if job.small else _MEAN), random.Random(count)
    return [draw.randint(mean // 2, mean + mean // 2) for _ in range(count)]


def _measure(
    job: Job,
    name: str,
    backend: AttentionBackend,
    need: AttentionNeed,
    contexts: Sequence[int],
    page: int,
    builds: Mapping[str, Callable[[], Attend]],
    longest: int = 0,
) -> None:
    """Report the bandwidth of one step over several layers, for each way to build attention.
    `longest`: of the contexts that the block tables have room for, if it is more than the longest
    of these."""
    count, device = len(contexts), job.device.torch_name
    batch = _step(contexts, page, device, longest)
    specs = backend.cache(need, page).values()
    per_token = sum(DTYPE_BYTES[each.dtype] * math.prod(each.shape) for each in specs) / page
    nbytes = sum(contexts) * per_token
    layers = 2 if job.small else max(1, int(_COLD // nbytes) + 1)
    blocks = count * (max(contexts) // page + 1)
    caches = KVCache.allocate([backend.cache(need, page)] * layers, blocks, device).layers
    for tensor in itertools.chain.from_iterable(cache.values() for cache in caches):
        if tensor.is_floating_point() and tensor.element_size() > 1:
            tensor.normal_()
    q_THC, k_TKC, v_TKC = (
        torch.randn(count, heads, need.head_dim, device=device).bfloat16()
        for heads in (need.num_heads, need.num_kv_heads, need.num_kv_heads)
    )
    for variant, build in builds.items():
        if job.left <= 0:
            break
        attend = build()
        if backend.begin is not None:
            backend.begin(need, batch)

        @torch.inference_mode()
        def step(attend: Attend = attend) -> None:
            for cache in caches:
                attend(q_THC, k_TKC, v_TKC, cache, batch)

        label = f"{name}, {variant}" if variant else name
        job.attempt(label, partial(_report, job, label, step, layers, nbytes))


def _report(job: Job, label: str, step: Callable[[], None], layers: int, nbytes: float) -> None:
    took = timed(step, job.device)
    each = took.seconds / layers
    detail = f"{each * 1e6:.1f} us {took.detail}".strip()
    job.figure(label, nbytes / each / 1e9, "GB/s", job.limits.gigabytes, detail=detail)


def _step(contexts: Sequence[int], page: int, device: str, longest: int) -> Batch:
    """Return a step with one token of each sequence; the sequences' blocks are scattered."""
    tables = block_tables(len(contexts), max(contexts) // page + 1)
    spans = [(length - 1, length) for length in contexts]
    every = list(range(len(contexts)))
    step = batch_of(every, every, spans, tables, page, device)
    more = longest // page - step.blocks_SM.shape[1]
    if more <= 0:
        return step
    return attrs.evolve(step, blocks_SM=torch.nn.functional.pad(step.blocks_SM, (0, more)))
