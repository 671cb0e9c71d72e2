"""Experts: GB/s of the experts in use beside a plain read of memory, for a few tokens; GFLOP/s for
a prompt; and the time of the rest: router, sorting, gathering, silu · up, weighted sum.

`python grouped.py [--layouts q4_k ...] [--tokens 1 4 ...] [--experts 128] [--top 8] [--hidden 2048]
[--inner 768]`, on as many threads as torch has. Each call draws its tokens' experts anew, so that
weights come from memory as they do in a model.

Suffixes: T tokens, E experts, K experts of a token, N pairs of a token and an expert, D hidden, I
inner.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.elementwise import gather, silu_mul
from inferno_cpu.experts import combine, dispatch, route
from inferno_cpu.layouts import LAYOUTS, nbytes
from inferno_cpu.memory import pages
from inferno_cpu.packed import PackedPanels, pack


def median(call: Callable[[int], object], seconds: float) -> float:
    """Seconds of a call; it is given 0, 1, 2, ..."""
    call(0)
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        began = time.perf_counter()
        call(len(times) + 1)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def probe(seconds: float) -> float:
    """Bytes a second of reading memory in order."""
    memory = pages(1 << 28)
    memory.fill_(1)
    return memory.nbytes / median(
        lambda _: _native.dense_read(memory.data_ptr(), memory.nbytes), seconds
    )


def experts(layout: str, count: int, rows: int, columns: int) -> Panels | PackedPanels:
    """`count` equal matrices."""
    if layout in LAYOUTS:
        kind = LAYOUTS[layout]
        data = torch.randint(
            0, 120, (rows, columns // kind.block * kind.block_bytes), dtype=torch.uint8
        )
        one = pack(layout, (rows, columns), data, dtype=torch.bfloat16)
        panels = pages(nbytes(layout, (count * rows, columns)))
        panels.view(count, -1).copy_(one)
        return PackedPanels(layout, (count * rows, columns), torch.bfloat16, panels)
    panels = pages(count * rows * columns * 2)
    panels.view(torch.bfloat16).view(count, -1).copy_(torch.randn(rows * columns))
    return Panels(panels, (count * rows, columns), torch.bfloat16)


def routes(tokens: int, count: int, top: int, steps: int) -> list[tuple[Tensor, int]]:
    """For each step the first rows of each expert, and how many experts are in use."""
    routings = []
    for _ in range(steps):
        picked_N = torch.rand(tokens, count).topk(top).indices.flatten()
        rows_E = torch.bincount(picked_N, minlength=count)
        starts_E1 = torch.zeros(count + 1, dtype=torch.int32)
        starts_E1[1:] = rows_E.cumsum(0)
        routings.append((starts_E1, int((rows_E > 0).sum())))
    return routings


def around(tokens: int, arguments: argparse.Namespace) -> float:
    """Seconds of all but the matrices of the experts."""
    x_TD = torch.randn(tokens, arguments.hidden, dtype=torch.bfloat16)
    router_ED = torch.randn(arguments.experts, arguments.hidden)
    gate_up_NI = torch.randn(tokens * arguments.top, 2 * arguments.inner, dtype=torch.bfloat16)

    def step(i: int) -> None:
        experts_TK, weights_TK = route(x_TD, router_ED, None, None, arguments.top, False, True, 1.0)
        tokens_N, _, places_TK = dispatch(experts_TK, arguments.experts)
        y_ND = gather(x_TD, tokens_N)
        silu_mul(*gate_up_NI.chunk(2, -1))
        combine(y_ND, places_TK, weights_TK)

    return median(step, arguments.seconds)


def bench(layout: str, arguments: argparse.Namespace) -> None:
    count, top, hidden, inner = arguments.experts, arguments.top, arguments.hidden, arguments.inner
    pair = experts(layout, count, 2 * inner, hidden), experts(layout, count, hidden, inner)
    each = sum(weight.nbytes for weight in pair) / count
    for tokens in arguments.tokens:
        steps = routes(tokens, count, top, 64)
        inputs = [
            torch.randn(tokens * top, weight.shape[1], dtype=torch.bfloat16) for weight in pair
        ]

        def step(
            i: int, inputs: list[Tensor] = inputs, steps: list[tuple[Tensor, int]] = steps
        ) -> None:
            for weight, x in zip(pair, inputs, strict=True):
                weight.grouped(x, steps[i % len(steps)][0])

        took = median(step, arguments.seconds)
        used = sum(n for _, n in steps) / len(steps)
        read = probe(arguments.seconds)
        flops = 2 * tokens * top * 3 * hidden * inner / took
        speed = used * each / took
        print(
            f"{layout:9} {tokens:4} tokens: {took * 1e6:7.0f} us, {used:5.1f} experts, "
            f"{speed / 1e9:5.1f} GB/s"
            f" = {speed / read:4.0%} of {read / 1e9:.1f}, {flops / 1e9:5.0f} GFLOP/s;"
            f" around: {around(tokens, arguments) * 1e6:5.0f} us",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--layouts", nargs="+", default=["bfloat16", "q8_0", "q4_k"], choices=["bfloat16", *LAYOUTS]
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 512])
    for name, default in (("experts", 128), ("top", 8), ("hidden", 2048), ("inner", 768)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=0.4, help="a figure")
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    _native.set_threads(torch.get_num_threads())
    print(f"{_native.selected()}, {_native.threads()} threads")
    for layout in arguments.layouts:
        bench(layout, arguments)


if __name__ == "__main__":
    main()
