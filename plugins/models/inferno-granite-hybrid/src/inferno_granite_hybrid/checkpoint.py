"""A view of checkpoints in which every expert has matrices of its own. Imports no torch.

A layer's experts are stored as one tensor, whose first axis is the expert; of `input_linear` the
gate's rows come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from inferno.contracts import Checkpoint, CheckpointView, TensorInfo
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_STACK = re.compile(r"(.*\.block_sparse_moe)\.(input_linear|output_linear)\.weight")
_ROUTER = re.compile(r"(.*\.block_sparse_moe\.router)\.layer\.weight")


@frozen
class _Place:
    """Where a tensor is stored: all of `name`, or rows of one expert of it."""

    name: str
    expert: int | None = None
    rows: slice = slice(None)

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.expert is None else tensor[self.expert, self.rows]


@frozen(eq=False)
class PerExpert(CheckpointView):
    """Matrices of experts are read as views of what the format reads."""

    tensors: Mapping[str, TensorInfo]
    _places: Mapping[str, _Place] = field(alias="places")

    def read(self, name: str) -> Tensor:
        place = self._places[name]
        return place.of(self.checkpoint.read(place.name))


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """Raises CheckpointError for a tensor that cannot be a stack of experts."""
    tensors: dict[str, TensorInfo] = {}
    places: dict[str, _Place] = {}
    for stored, info in checkpoint.tensors.items():
        if (stack := _STACK.fullmatch(stored)) is None:
            name = _ROUTER.sub(r"\1.weight", stored)
            tensors[name], places[name] = info, _Place(stored)
            continue
        block, matrix = stack.groups()
        parts = ("gate_proj", "up_proj") if matrix == "input_linear" else ("down_proj",)
        if len(info.shape) != 3 or info.shape[1] % len(parts):
            raise CheckpointError(
                f"{stored} of shape {info.shape} is no stack of experts",
                "The checkpoint is damaged: fetch it again.",
            )
        count, rows = info.shape[0], info.shape[1] // len(parts)
        one = TensorInfo(
            info.dtype, (rows, info.shape[2]), info.nbytes // max(1, count * len(parts))
        )
        for expert in range(count):
            for i, part in enumerate(parts):
                path = f"{block}.experts.{expert}.{part}.weight"
                tensors[path] = one
                places[path] = _Place(stored, expert, slice(i * rows, (i + 1) * rows))
    return PerExpert(checkpoint, tensors, places)
