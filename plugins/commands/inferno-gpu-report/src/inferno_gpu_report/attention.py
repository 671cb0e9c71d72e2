"""Attention in decode: the bandwidth at which each backend reads keys and values.

Suffixes: T tokens, H query heads, K key/value heads, C head dim.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from inferno.contracts import DTYPE_BYTES, Attend, AttentionBackend, AttentionNeed
from inferno.core.kvcache import KVCache
from inferno.nn.batch import Batch
from inferno.testing.paged_steps import batch_of, block_tables
from inferno_gpu_report.declared import variants_of
from inferno_gpu_report.job import Job
from inferno_gpu_report.timing import timed

_COLD = 256 << 20
"""Total bytes of keys and values in all layers: more than fits in a device's caches."""
_PAGES = (16, 64, 256)
_MEAN = 840
"""Mean context of nano-vllm's benchmark, in tokens."""


def decode(job: Job) -> None:
    """Report the bandwidth of each compatible backend by page size and number of sequences, then
    that of its variants for tuning. Contexts are ragged: between half and one and a half times the
    mean."""
    need = AttentionNeed(
        num_heads=4 if job.small else 16,
        num_kv_heads=2 if job.small else 8,
        head_dim=32 if job.small else 128,
        scale=0.1,
        dtype="bfloat16",
        device=job.device,
    )
    counts = (1, 4) if job.small else (256, 32, 1)
    willing = []
    for backend in job.attention_backends():
        if (reason := backend.refuses(need)) is not None:
            job.note(f"{backend.name}: {reason}")
        else:
            willing.append(backend)
    job.fact("heads", f"{need.num_heads} query, {need.num_kv_heads} key/value, of {need.head_dim}")
    for backend, count in itertools.product(willing, counts):
        for page in _PAGES:
            if page % backend.block_multiple == 0:
                job.check_time(f"{backend.name} at {count} sequences")
                name = f"{backend.name}, {count} sequences, pages of {page}"
                builds: dict[str, Callable[[], Attend]] = {"": partial(backend.build, need)}
                run = partial(_measure, job, name, backend, need, count, page, builds)
                job.attempt(name, run, backend.name)
    for backend, count in itertools.product(willing, counts):
        variants = variants_of(backend.name)
        if variants is None:
            continue
        for page in (16, 64):
            job.check_time(f"variants of {backend.name}")
            builds = dict(variants(need, page))
            name = f"{backend.name}, {count} sequences, pages of {page}"
            run = partial(_measure, job, name, backend, need, count, page, builds)
            job.attempt(name, run, backend.name)


def _measure(
    job: Job,
    name: str,
    backend: AttentionBackend,
    need: AttentionNeed,
    count: int,
    page: int,
    builds: Mapping[str, Callable[[], Attend]],
) -> None:
    """Report the bandwidth of one step over several layers, for each way to build attention."""
    mean, device = (40 if job.small else _MEAN), job.device.torch_name
    draw = random.Random(count)
    contexts = [draw.randint(mean // 2, mean + mean // 2) for _ in range(count)]
    batch = _step(contexts, page, device)
    held = backend.cache(need, page).values()
    per_token = sum(DTYPE_BYTES[each.dtype] * math.prod(each.shape) for each in held) / page
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


def _step(contexts: Sequence[int], page: int, device: str) -> Batch:
    """Return a step with one token of each sequence; the sequences' blocks are scattered."""
    tables = block_tables(len(contexts), max(contexts) // page + 1)
    spans = [(length - 1, length) for length in contexts]
    every = list(range(len(contexts)))
    return batch_of(every, every, spans, tables, page, device)
