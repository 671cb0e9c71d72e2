"""Public layouts of packed matrices: every kernel that knows one serves all schemes that convert
their matrices to it. The reference page `layouts.md` describes their tensors; the weights are
`inferno.nn.IntGroups`, `W8A8`, `TableGroups` and `Fp8Blocks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

GROUPS = (128, 64, 32)
"""Group sizes for which kernels are written."""


@frozen(kw_only=True)
class IntLayout:
    """Unsigned integers in groups of columns that share a scale and a zero point:
    value = scale · (code - zero)."""

    bits: Literal[4, 8]
    """Bits of a code."""
    group: int
    """Columns of a group."""
    symmetric: bool = False
    """Whether every zero point is half of the codes' range, 8 or 128, and not stored."""

    @property
    def name(self) -> str:
        """The `Weight.layout`: "int4_g128", "int8_sym_g64"."""
        return f"int{self.bits}{'_sym' if self.symmetric else ''}_g{self.group}"

    def nbytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix in this layout."""
        grids = 1 if self.symmetric else 2
        return rows * (columns * self.bits // 8 + columns // self.group * 2 * grids)

    @classmethod
    def fitting(cls, bits: int, group: int, *, symmetric: bool = False) -> IntLayout:
        """Return the layout that holds codes of `bits` bits in groups of `group` columns, without
        loss: in 4 bits if that is enough, and in the largest group size of `GROUPS` that divides
        `group`, with scales repeated. If none does, groups keep their size."""
        return cls(bits=4 if bits <= 4 else 8, group=_fitting(group), symmetric=symmetric)


@frozen(kw_only=True)
class W8A8Layout:
    """8-bit unsigned integers with a scale and a zero point for each row, multiplied by activations
    that are rounded to int8 with a scale for each token."""

    symmetric: bool = True
    """Whether every zero point is 128, and not stored."""

    @property
    def name(self) -> str:
        """The `Weight.layout`: "w8a8_sym" or "w8a8"."""
        return "w8a8_sym" if self.symmetric else "w8a8"

    def nbytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix in this layout."""
        return rows * (columns + (4 if self.symmetric else 8))


TABLES: Mapping[str, tuple[float, ...]] = {
    "nf4": (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
    "fp4": tuple(sign * each / 12 for sign in (1, -1) for each in (0.0, 0.0625, 8, 12, 4, 6, 2, 3)),
}
"""For each table the 16 values of its codes, rounded to float32: quantiles of the normal
distribution (https://arxiv.org/abs/2305.14314), and floats with two bits of exponent and one of
mantissa."""


@frozen(kw_only=True)
class TableLayout:
    """Codes of 4 bits that select one of 16 floats, in groups of columns that share a scale:
    value = scale · table[code]."""

    table: str
    """The table's name in `TABLES`."""
    group: int
    """Columns of a group."""

    @property
    def name(self) -> str:
        """The `Weight.layout`: "nf4_g64"."""
        return f"{self.table}_g{self.group}"

    def nbytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix in this layout."""
        return rows * (columns // 2 + columns // self.group * 4) + 4 * 16

    @classmethod
    def fitting(cls, table: str, group: int) -> TableLayout:
        """Return the layout for groups of `group` columns, as `IntLayout.fitting` does."""
        return cls(table=table, group=_fitting(group))


def _fitting(group: int) -> int:
    """Return the largest of `GROUPS` that divides a group, else the group."""
    return next((each for each in GROUPS if group % each == 0), group)


def fp8_layout(block: tuple[int, int]) -> str:
    """Return the layout of float8 matrices with a scale for each block of rows and columns:
    `fp8_128x128`, or `fp8_rows` if a block is a row."""
    return "fp8_rows" if block[0] == 1 else f"fp8_{block[0]}x{block[1]}"
