"""Layouts and element types that the kernels accept, and the memory that packed matrices need.

Used for planning: imports no torch.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple


class Layout(NamedTuple):
    number: int
    """The value in native/packed.hpp."""
    block: int
    """Columns that share a scale. The columns of a matrix must be divisible by it."""
    block_bytes: int
    """Bytes of a block of one row in the checkpoint; of its codes only for int4."""
    panel_bytes: int
    """Bytes of a block of the 16 rows of a panel."""


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
}
"""ggml's block layouts by their lower-case names, and inferno's public layouts of 4-bit integers,
with a scale and a zero point for each group of columns."""

SYMMETRIC = ("int8_sym_g32", "int8_sym_g64", "int8_sym_g128")
"""Public layouts of 8-bit integers, whose values q8_0 blocks have too: multiplied as such."""

QUANTIZED = {
    name: (kind.number, kind.block, kind.block_bytes) for name, kind in LAYOUTS.items()
} | {"iq4_nl": (13, 32, 18)}
"""Layouts that dense matrices can be quantized to: the value in native/quantize.hpp, columns and
bytes of a block."""

DTYPE_NUMBERS = {"float32": 0, "bfloat16": 1, "float16": 2}
"""Element types by name, with their values in native/dtype.hpp; `dtypes.DTYPES` is for torch."""

PANEL_ROWS = 16
LAYOUT_VERSION = 1
"""Of all panels, plain and quantized ones: another arrangement of their bytes is another version,
because packed weights are kept on disk."""


def refuses(layout: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Return why a matrix cannot be packed, or None. `shape` is (O, I), or (E, O, I) for a stack;
    `dtype` is the type of the activations."""
    if layout in SYMMETRIC:
        return refuses("q8_0", dtype, shape)
    if layout not in LAYOUTS:
        return f"no kernel for the layout {layout}"
    if dtype not in DTYPE_NUMBERS:
        return f"no kernel for activations in {dtype}"
    if len(shape) not in (2, 3) or min(shape) < 1:
        return f"a matrix has rows and columns, not the shape {shape}"
    if shape[-1] % LAYOUTS[layout].block:
        return (
            f"{shape[-1]} columns are not divisible into {layout}'s blocks of "
            f"{LAYOUTS[layout].block}"
        )
    return None


def nbytes(layout: str, shape: tuple[int, ...]) -> int:
    """Bytes of a matrix (O, I), or of a stack (E, O, I), in panels."""
    stack, (rows, columns) = prod(shape[:-2]), shape[-2:]
    return (
        stack
        * -(-rows // PANEL_ROWS)
        * (columns // LAYOUTS[layout].block)
        * LAYOUTS[layout].panel_bytes
    )
