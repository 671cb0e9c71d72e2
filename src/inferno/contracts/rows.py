"""A checkpoint whose tensors are rows of stored ones: the view that formats and families split
fused and stacked matrices with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from inferno.contracts.checkpoints import CheckpointView, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class RowRange:
    """What a tensor of the model is of a stored one: a range of its rows.

    Blocks of packed matrices run along a row, so that packed rows are sliced like dense ones.
    """

    stored: str
    """Name of the stored tensor."""
    member: int | None = None
    """Which matrix of a stack, an index on the stored tensor's first axis; None: not a stack."""
    rows: slice = slice(None)
    """Which of its rows, after `transposed`."""
    transposed: bool = False
    """Whether the stored matrix has the model's rows as its columns. Dense matrices only."""

    def info(self, stored: TensorInfo) -> TensorInfo:
        """The header of these rows."""
        shape = stored.shape if self.member is None else stored.shape[1:]
        shape = shape[::-1] if self.transposed else shape
        shape = (len(range(*self.rows.indices(shape[0]))), *shape[1:]) if shape else shape
        nbytes = stored.nbytes * math.prod(shape) // max(1, math.prod(stored.shape))
        return TensorInfo(stored.dtype, shape, nbytes)

    def of(self, stored: Tensor) -> Tensor:
        """These rows, a view of the stored tensor."""
        matrix = stored if self.member is None else stored[self.member]
        matrix = matrix.T if self.transposed else matrix
        return matrix[self.rows] if matrix.ndim else matrix


@frozen(eq=False)
class RowsView(CheckpointView):
    """A checkpoint in which each tensor is a `RowRange` of a stored one."""

    ranges: Mapping[str, RowRange]
    """Name in the model -> rows."""
    tensors: Mapping[str, TensorInfo] = field(init=False)

    @tensors.default
    def _infos(self) -> dict[str, TensorInfo]:
        stored = self.checkpoint.tensors
        return {name: rows.info(stored[rows.stored]) for name, rows in self.ranges.items()}

    def read(self, name: str) -> Tensor:
        rows = self.ranges[name]
        return rows.of(self.checkpoint.read(rows.stored))
