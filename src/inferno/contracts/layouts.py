"""Public layouts of packed matrices: every kernel that knows one serves all schemes that convert
their matrices to it. The reference page `layouts.md` describes their tensors; the weight is
`inferno.nn.IntGroups`."""

from __future__ import annotations

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
        size = next((each for each in GROUPS if group % each == 0), group)
        return cls(bits=4 if bits <= 4 else 8, group=size, symmetric=symmetric)


def fp8_layout(block: tuple[int, int]) -> str:
    """Return the layout of float8 matrices with a scale for each block of rows and columns:
    `fp8_128x128`, or `fp8_rows` if a block is a row."""
    return "fp8_rows" if block[0] == 1 else f"fp8_{block[0]}x{block[1]}"
