"""Layouts and element types that the kernels accept, and the memory that packed matrices need.

Used for planning: imports no torch.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple


class Layout(NamedTuple):
    number: int
    """The value in native/packed.hpp."""
    block: int
    """Columns that share a scale. The columns of a matrix must be divisible by it."""
    block_bytes: int
    """Bytes of a block of one row in the checkpoint; of its codes only for integers in groups."""
    panel_bytes: int
    """Bytes of a block of the 16 rows of a panel."""
    head: int = 0
    """Bytes of a panel before its blocks: the scales of whole rows."""


LAYOUTS = {
    "q8_0": Layout(0, 32, 34, 544),
    "q4_0": Layout(1, 32, 18, 288),
    "q4_1": Layout(2, 32, 20, 320),
    "q5_0": Layout(3, 32, 22, 352),
    "q5_1": Layout(4, 32, 24, 384),
    "q2_k": Layout(5, 256, 84, 1344),
    "q3_k": Layout(6, 256, 110, 1824),
    "q4_k": Layout(7, 256, 144, 2368),
    "q5_k": Layout(8, 256, 176, 2880),
    "q6_k": Layout(9, 256, 210, 3360),
    "int4_g32": Layout(10, 32, 16, 320),
    "int4_g64": Layout(11, 64, 32, 576),
    "int4_g128": Layout(12, 128, 64, 1088),
    "mxfp4": Layout(13, 32, 17, 272),
    "iq4_nl": Layout(14, 32, 18, 288),
    "int8_g32": Layout(15, 32, 32, 576),
    "int8_g64": Layout(16, 64, 64, 1088),
    "int8_g128": Layout(17, 128, 128, 2112),
    "int8_sym_g64": Layout(18, 64, 64, 1056),
    "int8_sym_g128": Layout(19, 128, 128, 2080),
    "w8a8": Layout(20, 32, 32, 512, 128),
    "w8a8_sym": Layout(21, 32, 32, 512, 128),
}
"""ggml's block layouts by their lower-case names, and inferno's public layouts of integers. The
integers have a scale and, unless it is fixed, a zero point for each group of columns, or in w8a8
for each row."""
MOST_COLUMNS = 1 << 16
"""Maximum number of columns if a row has one scale: sums of 8-bit products stay below 2^31."""

SYMMETRIC = ("int8_sym_g32",)
"""Public layouts of 8-bit integers, whose values q8_0 blocks have too: multiplied as such."""

QUANTIZED = {
    name: (number, LAYOUTS[name].block, LAYOUTS[name].block_bytes)
    for number, name in enumerate(
        [
            *("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
            *("int4_g32", "int4_g64", "int4_g128", "iq4_nl"),
        ]
    )
}
"""Layouts that dense matrices can be quantized to: the value in native/quantize.hpp, columns and
bytes of a block."""

DTYPE_NUMBERS = {"float32": 0, "bfloat16": 1, "float16": 2}
"""Element types by name, with their values in native/dtype.hpp; `dtypes.DTYPES` is for torch."""

FP8_ROWS, FP8_BLOCKS = "fp8_rows", "fp8_blocks"
FP8_BLOCK = 128
TABLE_GROUPS = {f"{table}_g{group}": group for table in ("nf4", "fp4") for group in (32, 64, 128)}
"""Public layouts of codes that select one of 16 floats, with the columns of a group."""
CODES = {name: number for number, name in enumerate((FP8_ROWS, FP8_BLOCKS, *TABLE_GROUPS), 3)}
"""Kinds of panels whose codes are decoded to floats, and their numbers in native/dtype.hpp:
8-bit floats with a scale for each row or for each block of `FP8_BLOCK` columns that the rows of a
panel share, and codes of a table."""

PANEL_ROWS = 16
LAYOUT_VERSION = 2
"""Version of the bytes of all panels. It changes with their arrangement, because packed weights are
kept on disk."""


def refuses(layout: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Return why a matrix cannot be packed, or None. `shape` is (O, I), or (E, O, I) for a stack;
    `dtype` is the type of the activations."""
    if layout in SYMMETRIC:
        return refuses("q8_0", dtype, shape)
    if not known(layout):
        return f"no kernel for the layout {layout}"
    if dtype not in DTYPE_NUMBERS:
        return f"no kernel for activations in {dtype}"
    if len(shape) not in (2, 3) or min(shape) < 1:
        return f"a matrix has rows and columns, not the shape {shape}"
    block = LAYOUTS[layout].block if layout in LAYOUTS else TABLE_GROUPS.get(layout, 1)
    if shape[-1] % block:
        return f"{shape[-1]} columns are not divisible into {layout}'s blocks of {block}"
    if layout in LAYOUTS and LAYOUTS[layout].head and shape[-1] > MOST_COLUMNS:
        return f"{shape[-1]} columns with one scale are more than {MOST_COLUMNS}"
    return None


def known(layout: str) -> bool:
    """Whether matrices in this layout have a kernel, if their shape allows it."""
    return layout in (*LAYOUTS, *SYMMETRIC, *TABLE_GROUPS) or is_fp8(layout)


def is_fp8(layout: str) -> bool:
    """Whether this is a layout of 8-bit floats with a kernel: scales of rows, or of blocks whose
    rows are whole panels and whose columns are divisible by `FP8_BLOCK`."""
    if layout == FP8_ROWS:
        return True
    block = re.fullmatch(r"fp8_([1-9]\d*)x([1-9]\d*)", layout)
    return block is not None and not (int(block[1]) % PANEL_ROWS or int(block[2]) % FP8_BLOCK)


def codes_nbytes(layout: str, shape: tuple[int, int]) -> int:
    """Return the bytes of a matrix of `CODES` in panels: scales and codes, each padded to 64 bytes,
    or both for each group of columns."""
    rows, columns = shape
    if layout in TABLE_GROUPS:
        group = TABLE_GROUPS[layout]
        return -(-rows // PANEL_ROWS) * (columns // group) * PANEL_ROWS * (4 + group // 2)
    scales = 4 * (PANEL_ROWS if layout == FP8_ROWS else -(-columns // FP8_BLOCK))
    codes = PANEL_ROWS * (columns + columns % 2)
    return -(-rows // PANEL_ROWS) * (-(-scales // 64) + -(-codes // 64)) * 64


def nbytes(layout: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a matrix (O, I), or of a stack (E, O, I), in panels."""
    stack, (rows, columns) = prod(shape[:-2]), shape[-2:]
    kind = LAYOUTS[layout]
    panel_bytes = kind.head + columns // kind.block * kind.panel_bytes
    return stack * -(-rows // PANEL_ROWS) * panel_bytes
