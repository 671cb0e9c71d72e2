"""Packed matrices: GB/s of packed bytes with one row of x beside a plain read, GFLOP/s with more
rows, time to repack.

`python packed.py [--shapes 4096x1024 ...] [--layouts q8_0 ...] [--rows 1 2 ...]`, on as many
threads as torch has. Copies of a matrix are multiplied in turn, so that weights come from memory as
they do in a model.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence

import torch

from inferno_cpu import _native
from inferno_cpu.layouts import LAYOUTS, nbytes
from inferno_cpu.memory import pages
from inferno_cpu.packed import PackedPanels, pack

COLD_BYTES = 160 << 20
"""Of copies: more than any cache here holds."""


def median(call: Callable[[int], object], seconds: float) -> float:
    """Seconds of a call; it is given 0, 1, 2, ..."""
    call(0)
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 3:
        began = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def probe(seconds: float) -> float:
    """Bytes a second of a plain sum over memory."""
    memory = pages(1 << 28).view(torch.int64)
    memory.fill_(1)
    return memory.nbytes / median(lambda _: memory.sum(), seconds)


def random_matrix(layout: str, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    kind = LAYOUTS[layout]
    groups = columns // kind.block
    data = torch.randint(0, 120, (rows, groups * kind.block_bytes), dtype=torch.uint8)
    if not layout.startswith(("int", "w8a8")):
        return (data,)
    grids = (0.01,) if "_sym" in layout else (0.01, 8.0)
    of = (rows, 1) if kind.head else (rows, groups)
    dtype = torch.float32 if kind.head else torch.float16
    return data, *(torch.full(of, value, dtype=dtype) for value in grids)


def bench(layout: str, rows: int, columns: int, batches: Sequence[int], seconds: float) -> None:
    tensors = random_matrix(layout, rows, columns)
    size = nbytes(layout, (rows, columns))
    repack = median(lambda _: pack(layout, (rows, columns), *tensors, dtype=torch.bfloat16), 0)
    first = pack(layout, (rows, columns), *tensors, dtype=torch.bfloat16)
    copies = [PackedPanels(layout, (rows, columns), torch.bfloat16, first)]
    for _ in range(min(64, max(0, COLD_BYTES // size - 1))):
        again = pages(size)
        again.copy_(first)
        copies.append(PackedPanels(layout, (rows, columns), torch.bfloat16, again))
    cells = [f"{rows}x{columns} {layout:9s} repack {tensors[0].nbytes / repack / 1e9:4.1f} GB/s"]
    for batch in batches:
        x = torch.randn(batch, columns, dtype=torch.bfloat16)
        sweep = len(copies) if batch <= 16 else 1

        def step(i: int, x: torch.Tensor = x, sweep: int = sweep) -> None:
            for j in range(sweep):
                copies[(i + j) % len(copies)].matmul(x)

        took = median(step, seconds) / sweep
        if batch == 1:
            read = probe(seconds)
            cells.append(
                f"1: {size / took / 1e9:.1f} GB/s = {size / took / read:.0%} of "
                f"{read / 1e9:.1f}, {took * 1e6:.0f} us"
            )
        else:
            cells.append(f"{batch}: {2 * batch * rows * columns / took / 1e9:.0f}")
    print(" | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shapes", nargs="+", default=["4096x1024", "1024x2048", "6144x1024", "1024x3072"]
    )
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument(
        "--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 512], help="of x"
    )
    parser.add_argument("--seconds", type=float, default=0.1, help="a cell")
    parser.add_argument("--isa", choices=_native.available())
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    _native.set_threads(torch.get_num_threads())
    if arguments.isa:
        _native.select(arguments.isa)
    print(f"{_native.selected()}, {_native.threads()} threads; rows of x: GFLOP/s")
    for shape in arguments.shapes:
        rows, columns = map(int, shape.split("x"))
        for layout in arguments.layouts:
            bench(layout, rows, columns, arguments.rows, arguments.seconds)


if __name__ == "__main__":
    main()
