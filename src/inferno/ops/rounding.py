"""Rounds matrices to integers in groups of columns: to the nearest, or by the inputs they are
multiplied with.

Suffixes: O rows, I columns, G groups of columns, B columns of a block.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

BLOCK = 128
"""Columns that are rounded one by one before the others are updated."""


@frozen
class Grid:
    """The integers of a group: value = scale · (code - zero)."""

    bits: int
    group: int
    """Columns that share a scale."""
    symmetric: bool
    least: float = 1e-6
    """The smallest scale: of groups of zeros."""

    def of(self, weight_Oi: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale, exact in float16, and zero point of one group's columns, (O, 1) each."""
        most = (1 << self.bits) - 1
        low = weight_Oi.amin(1, keepdim=True).clamp(max=0)
        high = weight_Oi.amax(1, keepdim=True).clamp(min=0)
        if self.symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale_O1 = ((high - low) / most).clamp(min=self.least).half().float()
        if self.symmetric:
            return scale_O1, torch.full_like(scale_O1, 1 << self.bits - 1)
        return scale_O1, (-low / scale_O1).round().clamp(0, most)

    def codes(self, weight_Oi: Tensor, scale_O1: Tensor, zero_O1: Tensor) -> Tensor:
        """Return the nearest codes, as floats."""
        return ((weight_Oi / scale_O1).round() + zero_O1).clamp(0, (1 << self.bits) - 1)


@frozen(eq=False)
class Rounded:
    """A rounded matrix."""

    codes_OI: Tensor
    """uint8."""
    scales_OG: Tensor
    """float32, exact in float16."""
    zeros_OG: Tensor
    """uint8."""
    groups_I: Tensor
    """The group of each column, int32."""

    def values(self) -> Tensor:
        """Return the matrix that it represents, float32 (O, I)."""
        scales_OI, zeros_OI = (each[:, self.groups_I.long()] for each in self._grids())
        return scales_OI * (self.codes_OI.float() - zeros_OI)

    def _grids(self) -> tuple[Tensor, Tensor]:
        return self.scales_OG, self.zeros_OG.float()


def nearest(weight_OI: Tensor, grid: Grid) -> Rounded:
    """Round each value to the nearest."""
    rows, columns = weight_OI.shape
    groups = columns // grid.group
    weight = weight_OI.float().reshape(rows * groups, grid.group)
    scale, zero = grid.of(weight)
    codes = grid.codes(weight, scale, zero)
    groups_I = torch.arange(columns, dtype=torch.int32) // grid.group
    return Rounded(
        codes.view(rows, columns).to(torch.uint8),
        scale.view(rows, groups),
        zero.view(rows, groups).to(torch.uint8),
        groups_I,
    )


def by_inputs(
    weight_OI: Tensor,
    gram_II: Tensor,
    grid: Grid,
    *,
    damping: float = 0.01,
    act_order: bool = False,
) -> Rounded:
    """Round column by column, and let the columns that follow make up for each error, such that
    products with inputs of this Gram matrix (the sum of x xT) change least (arXiv:2210.17323).

    Columns are rounded from the largest diagonal to the smallest, so that what a few columns of
    large inputs lose is made up for by all others. With `act_order`, they are grouped in that order
    too; else as they are stored, with the scales of the matrix as it was. `damping` is the share of
    the mean diagonal that is added to the diagonal; it is raised tenfold until the matrix can be
    inverted."""
    weight_OI = weight_OI.float().clone()
    rows, columns = weight_OI.shape
    weight_OI[:, gram_II.diagonal() == 0] = 0.0  # never multiplied
    order_I = gram_II.diagonal().argsort(descending=True, stable=True)
    in_order_I = torch.arange(columns) // grid.group
    before = nearest(weight_OI, grid)
    scales_OG, zeros_OG = before.scales_OG, before.zeros_OG.float()
    group_I = in_order_I if act_order else in_order_I[order_I]
    weight_OI = weight_OI[:, order_I]
    inverse_II = _factor(gram_II, order_I, damping)
    codes_OI = torch.empty(rows, columns, dtype=torch.uint8)
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        errors_OB = torch.zeros(rows, stop - start)
        for i in range(start, stop):
            group = slice(int(group_I[i]), int(group_I[i]) + 1)
            if act_order and i % grid.group == 0:
                scale_O1, zero_O1 = grid.of(weight_OI[:, i : i + grid.group])
                scales_OG[:, group], zeros_OG[:, group] = scale_O1, zero_O1
            scale_O1, zero_O1 = scales_OG[:, group], zeros_OG[:, group]
            column_O1 = weight_OI[:, i : i + 1]
            code_O1 = grid.codes(column_O1, scale_O1, zero_O1)
            error_O1 = (column_O1 - scale_O1 * (code_O1 - zero_O1)) / inverse_II[i, i]
            codes_OI[:, order_I[i]] = code_O1[:, 0].to(torch.uint8)
            weight_OI[:, i:stop] -= error_O1 * inverse_II[i, i:stop]
            errors_OB[:, i - start] = error_O1[:, 0]
        weight_OI[:, stop:] -= errors_OB @ inverse_II[start:stop, stop:]
    groups_I = torch.empty(columns, dtype=torch.int32)
    groups_I[order_I] = group_I.int()
    return Rounded(codes_OI, scales_OG, zeros_OG.to(torch.uint8), groups_I)


def _factor(gram_II: Tensor, order_I: Tensor, damping: float) -> Tensor:
    """Return the upper Cholesky factor of the inverse of the damped matrix, with rows and columns
    in this order, float32. Computed in place in one matrix of float64: the largest one here."""
    info = torch.empty((), dtype=torch.int32)
    while True:
        ordered_II = gram_II[order_I][:, order_I]
        work_II = ordered_II.to(torch.float64, copy=True).mT  # as LAPACK has it; it is symmetric
        diagonal_I = work_II.diagonal()
        diagonal_I[diagonal_I == 0] = 1.0
        diagonal_I.add_(damping * diagonal_I.mean())
        torch.linalg.cholesky_ex(work_II, out=(work_II, info))
        if not info:
            torch.cholesky_inverse(work_II, out=work_II)
            torch.linalg.cholesky_ex(work_II, upper=True, out=(work_II, info))
            if not info:
                return work_II.to(torch.float32, memory_format=torch.contiguous_format)
        del ordered_II, work_II, diagonal_I
        damping = max(10 * damping, 1e-4)
