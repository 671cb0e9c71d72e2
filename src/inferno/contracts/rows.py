"""A checkpoint view whose tensors are row ranges of stored ones: formats and model families use it
to split fused and stacked matrices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from inferno.contracts.checkpoints import Checkpoint, CheckpointView, TensorInfo
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
_MODULES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@frozen
class RowRange:
    """The rows of a stored tensor that make up one tensor of the model.

    Packed blocks run along a row, so that packed rows can be sliced like dense ones.
    """

    stored: str
    """Name of the stored tensor."""
    member: int | None = None
    """Index of the matrix in a stack, the stored tensor's first axis; None: not a stack."""
    rows: slice = slice(None)
    """Range of rows, after `transposed`."""
    transposed: bool = False
    """Whether the stored matrix has the model's rows as its columns. Dense matrices only."""
    groups: int = 1
    """Number of equal parts of the stored rows; `rows` are those of each part."""
    axis: int = 0
    """Axis of the stored tensor along which the rows lie, after `member` and `transposed`. Some
    packed formats use another axis than the first."""

    def info(self, stored: TensorInfo) -> TensorInfo:
        """Return the header of these rows."""
        shape = stored.shape if self.member is None else stored.shape[1:]
        shape = shape[::-1] if self.transposed else shape
        if shape:
            before, size, after = shape[: self.axis], shape[self.axis], shape[self.axis + 1 :]
            count = len(range(*self.rows.indices(size // self.groups))) * self.groups
            shape = (*before, count, *after)
        nbytes = stored.nbytes * math.prod(shape) // max(1, math.prod(stored.shape))
        return TensorInfo(stored.dtype, shape, nbytes)

    def of(self, stored: Tensor) -> Tensor:
        """Return these rows: as a view of the stored tensor, if they are of one group."""
        matrix = stored if self.member is None else stored[self.member]
        matrix = matrix.T if self.transposed else matrix
        if self.groups > 1 or self.axis:
            parts: Tensor = matrix.unflatten(self.axis, (self.groups, -1)).movedim(self.axis, 0)
            kept = parts.movedim(self.axis + 1, 1)[:, self.rows].flatten(0, 1)
            return kept.movedim(0, self.axis).contiguous()
        return matrix[self.rows] if matrix.ndim else matrix


def expert_rows(
    stored: str,
    info: TensorInfo,
    experts: str,
    modules: Sequence[str],
    *,
    part: str = "weight",
    ndim: int = 3,
    interleaved: bool = False,
    transposed: bool = False,
) -> dict[str, RowRange]:
    """Split a stored tensor with the matrices of all experts, whose first axis is the expert.

    Returns the rows of `{experts}.{number}.{module}.{part}` for each expert and module. An expert's
    rows are those of the first module, then of the second; or they alternate, if `interleaved`.
    Raises CheckpointError unless the tensor has `ndim` axes and rows for every module."""
    if len(info.shape) != ndim or info.shape[-1 if transposed else 1] % len(modules):
        raise CheckpointError(
            f"{stored} of shape {info.shape} is not a stack of experts",
            "The checkpoint is damaged: download it again.",
        )
    count = len(modules)
    size = info.shape[-1 if transposed else 1] // count
    rows = [
        slice(i, None, count) if interleaved else slice(i * size, (i + 1) * size)
        for i in range(count)
    ]
    return {
        f"{experts}.{expert}.{module}.{part}": RowRange(stored, expert, some, transposed)
        for expert in range(info.shape[0])
        for module, some in zip(modules, rows, strict=True)
    }


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


def per_expert(checkpoint: Checkpoint, *, transposed: bool = False) -> Checkpoint:
    """View a checkpoint whose layers have one `experts.gate_up_proj`, the gate's rows first, and
    one `experts.down_proj`, whose first axis is the expert, with matrices of each expert. Return it
    as it is if it has these. Raises CheckpointError for a tensor that cannot be a stack of
    experts."""
    ranges: dict[str, RowRange] = {}
    for name, info in checkpoint.tensors.items():
        if (stack := _STACK.fullmatch(name)) is None:
            ranges[name] = RowRange(name)
        else:
            ranges |= expert_rows(name, info, stack[1], _MODULES[stack[2]], transposed=transposed)
    changed = any(name != rows.stored for name, rows in ranges.items())
    return RowsView(checkpoint, ranges) if changed else checkpoint
