"""What a rank holds of a tensor that several ranks share."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen
class Cut:
    """The ranges that a rank keeps along one axis of a matrix: of its rows (0) or its columns
    (1)."""

    axis: int
    ranges: tuple[tuple[int, int], ...]
    """Each from its first to before its last, ascending."""

    @classmethod
    def rows(cls, *ranges: tuple[int, int]) -> Cut:
        """Return a cut of rows, in which ranges that follow each other are one."""
        joined = list[tuple[int, int]]()
        for start, stop in ranges:
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            if start < stop:
                joined.append((start, stop))
        return cls(0, tuple(joined))

    @property
    def size(self) -> int:
        """How many rows or columns are kept."""
        return sum(stop - start for start, stop in self.ranges)

    def shape(self, whole: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of what is kept of a matrix."""
        return (whole[0], self.size) if self.axis else (self.size, whole[1])

    def of(self, tensor: Tensor, values: int = 1, stored: int = 1) -> Tensor:
        """Return what is kept of a tensor in which `stored` entries along the axis hold `values`
        rows or columns. Ranges that end within these are an error of the plan. With one range the
        result is a view: no other page of a mapped file is read. Ranges may reach beyond the last
        entry's share of a block that is cut off."""
        axis, length = self.axis, tensor.shape[self.axis]
        parts = list[Tensor]()
        for start, stop in self.ranges:
            assert start % values == 0, "a block would be cut"
            first, last = start // values * stored, -(-stop // values) * stored
            assert stop % values == 0 or last >= length, "a block would be cut"
            parts.append(tensor.narrow(axis, first, min(last, length) - first))
        return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


@frozen
class Share:
    """What a rank holds of a matrix."""

    cut: Cut
    whole: tuple[int, int]
    """Rows and columns of all ranks together."""

    def of_pair(self, a_RI: Tensor, b_RO: Tensor) -> tuple[Tensor, Tensor]:
        """Return what changes the share of a low-rank adapter, y = B A x: rows of B, or columns of
        A, whose products with the ranks' own inputs sum to that of all. B is transposed."""
        cut = Cut(1, self.cut.ranges)
        return (cut.of(a_RI), b_RO) if self.cut.axis else (a_RI, cut.of(b_RO))
