"""Each layout of matrices that inferno-cpu multiplies, beside torch's own CPU paths: what share of
the memory's speed a decode step reaches, and what share of its instruction's peak 512 rows do.

    python layouts.py [--layouts q8_0 ...] [--shape 4096x4096] [--rounds 7] [--batches 8 512]

Prints a Markdown table. Decode multiplies copies of one matrix in turn, more than any cache holds,
by one row in bfloat16, in turns with plain reads of memory; so do batches of up to 32 rows, whose
floor is the longer of reading the matrix and of the multiplications. On as many threads as torch
has. A round during which other processes used the processor is repeated, up to three times as many.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from attrs import frozen
from machine import Neighbours
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import CODES, LAYOUTS, TABLE_GROUPS, codes_nbytes, nbytes
from inferno_cpu.memory import pages
from inferno_cpu.packed import PackedPanels, pack

COLD = 192 << 20
"""Bytes of all copies of a matrix."""
FEW = 32
"""Most rows that multiply all copies."""
Product = Callable[[Tensor], object]


@frozen
class Layout:
    """Ways to multiply by a matrix in one layout."""

    name: str
    nbytes: int
    peak: str
    """The type whose instruction multiplies: a name for `_native.peak`."""
    copies: Sequence[Product]


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def ours(name: str, rows: int, columns: int) -> Layout:
    """A random matrix: the bytes do not change the time, as long as no value is subnormal."""
    shape = rows, columns
    if name == "bfloat16":
        size = 2 * rows * columns
        first = torch.randn(size // 2).bfloat16().view(torch.uint8)
    elif name in CODES:
        size = codes_nbytes(name, shape)
        first = torch.randint(0, 0x7F, (size,), dtype=torch.uint8)
        blocks = rows // 16 * columns // TABLE_GROUPS.get(name, columns)
        first.view(torch.float32).view(blocks, -1)[:, :16] = 0.01
    else:
        size, kind = nbytes(name, shape), LAYOUTS[name]
        groups = columns // kind.block
        data = torch.randint(0, 120, (rows, groups * kind.block_bytes), dtype=torch.uint8)
        in_groups = name.startswith(("int", "w8a8"))
        values = () if not in_groups else (0.01,) if "_sym" in name else (0.01, 8.0)
        of = (rows, 1) if kind.head else (rows, groups)
        dtype = torch.float32 if kind.head else torch.float16
        grids = [torch.full(of, value, dtype=dtype) for value in values]
        first = pack(name, shape, data, *grids, dtype=torch.bfloat16)
    copies: list[Product] = []
    for _ in range(-(-COLD // size)):
        panels = pages(size)
        panels.copy_(first)
        if name in LAYOUTS:
            copies.append(PackedPanels(name, shape, torch.bfloat16, panels).matmul)
        else:
            layout = name if name in CODES else ""
            copies.append(Panels(panels, shape, torch.bfloat16, layout).matmul)
    floats = name == "bfloat16" or name in CODES
    return Layout(name, size, "bfloat16" if floats else "int8", copies)


def torch_bfloat16(rows: int, columns: int) -> Layout:
    size = 2 * rows * columns
    copies = [torch.randn(rows, columns).bfloat16() for _ in range(-(-COLD // size))]
    products = [partial(torch.nn.functional.linear, weight=w) for w in copies]
    return Layout("torch: bfloat16", size, "bfloat16", products)


def torch_int8(rows: int, columns: int) -> Layout:
    """`_weight_int8pack_mm`: a scale for each row."""
    scales, op = torch.full((rows,), 0.01).bfloat16(), torch.ops.aten._weight_int8pack_mm
    copies = [
        torch.randint(-127, 127, (rows, columns), dtype=torch.int8)
        for _ in range(-(-COLD // (rows * columns)))
    ]
    products = [partial(op, mat2=w, scales=scales) for w in copies]
    return Layout("torch: int8 weights", rows * columns, "bfloat16", products)


def torch_int4(rows: int, columns: int) -> Layout:
    """`_weight_int4pack_mm_for_cpu`: groups of 128 with zero points."""
    grid = torch.full((columns // 128, rows, 2), 0.01).bfloat16()
    op, size = torch.ops.aten._weight_int4pack_mm_for_cpu, rows * columns // 2 + grid.nbytes
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    first = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    copies = [first.clone() for _ in range(-(-COLD // size))]
    products = [partial(op, mat2=w, qGroupSize=128, qScaleAndZeros=grid) for w in copies]
    return Layout("torch: int4 in groups of 128", size, "bfloat16", products)


def torch_w8a8(rows: int, columns: int) -> Layout:
    """`_int_mm`, with the activations already in int8 and the sums not scaled."""
    copies = [
        torch.randint(-127, 127, (rows, columns), dtype=torch.int8).t()
        for _ in range(-(-COLD // (rows * columns)))
    ]

    def product(w: Tensor, x: Tensor) -> Tensor:
        return torch._int_mm(x.to(torch.int8), w)

    products = [partial(product, w) for w in copies]
    return Layout("torch: int8 by int8", rows * columns, "int8", products)


def torch_fp8(rows: int, columns: int) -> Layout:
    """`_scaled_mm`, which rounds activations to float8 too."""
    one = torch.ones(())
    copies = [
        torch.randn(rows, columns).to(torch.float8_e4m3fn).t()
        for _ in range(-(-COLD // (rows * columns)))
    ]

    def product(w: Tensor, x: Tensor) -> Tensor:
        return torch._scaled_mm(x.to(torch.float8_e4m3fn), w, one, one, out_dtype=torch.bfloat16)

    products = [partial(product, w) for w in copies]
    return Layout("torch: float8", rows * columns, "bfloat16", products)


PEERS = {
    "torch-bfloat16": torch_bfloat16,
    "torch-int8": torch_int8,
    "torch-int4": torch_int4,
    "torch-w8a8": torch_w8a8,
    "torch-fp8": torch_fp8,
}


def each(copies: Sequence[Product], x: Tensor) -> None:
    for copy in copies:
        copy(x)


def measured(
    layout: Layout, rows: int, columns: int, rounds: int, batches: Sequence[int]
) -> Iterator[str]:
    """Cells of the table."""
    memory = pages(1 << 28)
    memory.fill_(1)
    one = torch.randn(1, columns).bfloat16()
    many = [torch.randn(batch, columns).bfloat16() for batch in batches]
    read_speeds: list[float] = []
    speeds: list[float] = []
    rates: dict[int, list[float]] = {batch: [] for batch in batches}
    peaks: list[float] = []
    floors: dict[int, list[float]] = {batch: [] for batch in batches}
    for x in (one, *many):
        each(layout.copies, x)
    left = 3 * rounds
    while len(speeds) < rounds and left:
        left -= 1
        with Neighbours() as neighbours:
            read = timed(lambda: _native.dense_read(memory.data_ptr(), memory.nbytes))
            took = timed(lambda: each(layout.copies, one)) / len(layout.copies)
            took_by = [seconds_of(layout, x) for x in many]
            peak = max(_native.peak(layout.peak) for _ in range(3))
        if neighbours.clean or left < rounds - len(speeds):
            read_speeds.append(memory.nbytes / read)
            speeds.append(layout.nbytes / took)
            peaks.append(peak)
            for x, taken in zip(many, took_by, strict=True):
                work = 2 * len(x) * rows * columns
                rates[len(x)].append(work / taken)
                reading = layout.nbytes * read / memory.nbytes if len(x) <= FEW else 0.0
                floors[len(x)].append(work / max(reading, work / peak))
    yield layout.name
    yield f"{8 * layout.nbytes / rows / columns:.2f}"
    yield f"{statistics.median(speeds) / 1e9:.1f}"
    yield f"{share(speeds, read_speeds):.0%}"
    for batch in batches:
        yield f"{statistics.median(rates[batch]) / 1e9:.0f}"
        yield f"{share(rates[batch], peaks):.0%} of {layout.peak}"
        if batch <= FEW:
            yield f"{share(rates[batch], floors[batch]):.0%}"


def seconds_of(layout: Layout, x: Tensor) -> float:
    """Seconds of a product."""
    copies = layout.copies if len(x) <= FEW else layout.copies[:1]
    return timed(lambda: each(copies, x)) / len(copies)


def share(parts: Sequence[float], wholes: Sequence[float]) -> float:
    """The median of the shares of each round."""
    return statistics.median(part / whole for part, whole in zip(parts, wholes, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = ["bfloat16", *CODES, *LAYOUTS, *PEERS]
    parser.add_argument("--layouts", nargs="+", default=known, choices=known)
    parser.add_argument("--shape", default="4096x4096", help="rows and columns of the matrix")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", nargs="*", type=int, default=[512], help="rows of x")
    parser.add_argument("--level", choices=_native.available())
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    _native.set_threads(torch.get_num_threads())
    if arguments.level:
        _native.select(arguments.level)
    rows, columns = map(int, arguments.shape.split("x"))
    print(f"{arguments.shape}, {_native.selected()}, {_native.threads()} threads\n")
    heads = [
        f"{batch} rows, GFLOP/s | of peak{' | of the floor' if batch <= FEW else ''}"
        for batch in arguments.batches
    ]
    print(f"| {' | '.join(['layout | bits a weight | decode, GB/s | of a plain read', *heads])} |")
    columns_of_batches = sum(3 if batch <= FEW else 2 for batch in arguments.batches)
    print(f"|{' --- |' * (4 + columns_of_batches)}")
    for name in arguments.layouts:
        try:
            layout = PEERS[name](rows, columns) if name in PEERS else ours(name, rows, columns)
            cells = list(measured(layout, rows, columns, arguments.rounds, arguments.batches))
        except RuntimeError as error:  # torch has no such path here
            cells = [name, str(error).splitlines()[0]]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
