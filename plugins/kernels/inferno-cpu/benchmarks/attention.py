"""Time of one layer's attention, native beside torch's: `python benchmarks/attention.py [--heads 16
--kv-heads 8 ...]`.

Decode is held against the speed of memory: the bytes of keys and values over a read of as many
bytes, taken next to it. Prompts are held against what they compute: four operations per query,
head, channel and key seen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inferno.builtin import torch_attention, torch_cache
from inferno.contracts import Attend, AttentionNeed, Device
from inferno.core.kvcache import KVCache
from inferno.nn.batch import Batch
from inferno_cpu import _native, attend, attention

BLOCK = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-dtypes", nargs="*", default=["auto", "int8", "fp8_e4m3"])
    parser.add_argument(
        "--decode", nargs="*", default=["16x1024", "1x2048", "64x512"], help="sequences x context"
    )
    parser.add_argument("--prefill", nargs="*", type=int, default=[512, 2048])
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    _native.set_threads(args.threads)
    print(
        f"{_native.selected()}, {args.threads} threads, {args.heads}/{args.kv_heads} heads of "
        f"{args.head_dim}, {args.dtype}"
    )
    for cache_dtype in args.cache_dtypes:
        need = AttentionNeed(
            num_heads=args.heads,
            num_kv_heads=args.kv_heads,
            head_dim=args.head_dim,
            scale=args.head_dim**-0.5,
            dtype=args.dtype,
            device=Device("cpu"),
            cache_dtype=cache_dtype,
        )
        torch_too = cache_dtype == "auto" and not args.no_torch
        for shape in args.decode:
            sequences, context = map(int, shape.split("x"))
            decode(need, sequences, context, torch_too)
        for tokens in args.prefill:
            prefill(need, tokens, torch_too)


def decode(need: AttentionNeed, sequences: int, context: int, torch_too: bool) -> None:
    element = 1 if need.cache_dtype != "auto" else getattr(torch, need.dtype).itemsize
    scale = 8 if need.cache_dtype != "auto" else 0
    size = sequences * context * need.num_kv_heads * (2 * need.head_dim * element + scale)
    layers = max(2, 200_000_000 // size)  # more than any cache holds
    probe = probe_of(size * layers)
    native = run(
        need, attend.build(need), attention.cache, [1] * sequences, [context] * sequences, layers
    )
    ours, read = interleaved(native, probe)
    line = (
        f"decode {sequences:3} x {context:5} {need.cache_dtype:9} native "
        f"{ours / layers * 1e6:7.0f} us/layer"
    )
    line += (
        f"  {size * layers / ours / 1e9:5.1f} GB/s of {size * layers / read / 1e9:5.1f}: "
        f"{read / ours:4.0%}"
    )
    if torch_too:
        theirs = run(
            need,
            torch_attention.TorchAttend(need),
            torch_cache.layout,
            [1] * sequences,
            [context] * sequences,
            layers,
        )
        [seconds] = interleaved(theirs, rounds=2)
        line += f"   torch {seconds / layers * 1e6:7.0f} us"
    print(line, flush=True)


def prefill(need: AttentionNeed, tokens: int, torch_too: bool) -> None:
    work = 4 * need.num_heads * need.head_dim * tokens * (tokens + 1) / 2
    [ours] = interleaved(run(need, attend.build(need), attention.cache, [tokens], [tokens], 1))
    peak = max(
        _native.peak("bfloat16" if need.dtype == "bfloat16" else "float32") for _ in range(5)
    )
    line = (
        f"prompt {tokens:5} {need.cache_dtype:15} native {ours * 1e6:7.0f} us "
        f"{work / ours / 1e9:7.0f} GFLOP/s, {work / ours / peak:.0%} of peak"
    )
    if torch_too:
        theirs = run(
            need, torch_attention.TorchAttend(need), torch_cache.layout, [tokens], [tokens], 1
        )
        [seconds] = interleaved(theirs, rounds=3)
        line += f"   torch {seconds * 1e6:7.0f} us"
    print(line, flush=True)


def run(
    need: AttentionNeed,
    call: Attend,
    layout: Any,
    counts: Sequence[int],
    contexts: Sequence[int],
    layers: int,
) -> Callable[[], None]:
    """Return a step of these sequences through `layers` layers."""
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    widest = -(-max(contexts) // BLOCK)
    tables_SM = torch.randperm(len(counts) * widest).view(len(counts), widest)
    places = [(s, contexts[s] - n + i) for s, n in enumerate(counts) for i in range(n)]
    slots = [int(tables_SM[s, p // BLOCK]) * BLOCK + p % BLOCK for s, p in places]
    caches = KVCache.allocate([layout(need, BLOCK)] * layers, len(counts) * widest, "cpu").layers
    for cache in caches:
        for tensor in cache.values():
            tensor.view(torch.uint8).fill_(0x3A)  # a small value in every type
    dtype = getattr(torch, need.dtype)
    qkv = torch.randn(len(places), need.num_heads + 2 * need.num_kv_heads, need.head_dim).to(dtype)
    q_THC, k_TKC, v_TKC = torch.split(
        qkv, [need.num_heads, need.num_kv_heads, need.num_kv_heads], 1
    )
    batch = Batch(
        token_ids_T=torch.zeros(len(places), dtype=torch.int64),
        positions_T=torch.tensor([p for _, p in places]),
        slots_T=torch.tensor(slots),
        query_starts=starts,
        context_lens=list(contexts),
        blocks_SM=tables_SM,
        block_size=BLOCK,
        query_starts_S1=torch.tensor(starts, dtype=torch.int32),
        context_lens_S=torch.tensor(contexts, dtype=torch.int32),
    )

    def step() -> None:
        with torch.inference_mode():
            for cache in caches:
                call(q_THC.contiguous(), k_TKC, v_TKC, cache, batch)

    return step


def probe_of(size: int) -> Callable[[], None]:
    """Return a step that reads `size` bytes."""
    elements = torch.ones(size // 4)

    def read() -> None:
        elements.sum()

    return read


def interleaved(*steps: Callable[[], None], rounds: int = 7) -> list[float]:
    """Return the median seconds of each step, run in turns."""
    for step in steps:
        step()
    samples: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for sample, step in zip(samples, steps, strict=True):
            begin = time.perf_counter()
            step()
            sample.append(time.perf_counter() - begin)
    return [statistics.median(sample) for sample in samples]


if __name__ == "__main__":
    main()
