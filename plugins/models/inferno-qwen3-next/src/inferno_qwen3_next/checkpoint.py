"""A view of checkpoints under the model's names: the language model as if it were stored alone, and
every expert with matrices of its own. Imports no torch.

Qwen3.5 is stored beside a vision tower. Where a layer's experts are one tensor, its first axis is
the expert, and of `gate_up_proj` the gate's rows come first.
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

_SEES = re.compile(r"(model\.)?visual\.")
_LANGUAGE = re.compile(r"^(model\.language_model|language_model\.model)\.")
_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


@frozen
class _Place:
    """Where a tensor is stored: all of `name`, or rows of one expert of it."""

    name: str
    expert: int | None = None
    rows: slice = slice(None)

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.expert is None else tensor[self.expert, self.rows]


@frozen(eq=False)
class TextPart(CheckpointView):
    """Matrices of experts are read as views of what the format reads."""

    tensors: Mapping[str, TensorInfo]
    _places: Mapping[str, _Place] = field(alias="places")

    def read(self, name: str) -> Tensor:
        place = self._places[name]
        return place.of(self.checkpoint.read(place.name))


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """Raises CheckpointError for a tensor that cannot be a stack of experts."""
    tensors: dict[str, TensorInfo] = {}
    places: dict[str, _Place] = {}
    for stored, info in checkpoint.tensors.items():
        if _SEES.match(stored):
            continue
        name = _LANGUAGE.sub("model.", stored)
        if (stack := _STACK.fullmatch(name)) is None:
            tensors[name], places[name] = info, _Place(stored)
            continue
        experts, matrix = stack.groups()
        parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
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
                path = f"{experts}.{expert}.{part}.weight"
                tensors[path] = one
                places[path] = _Place(stored, expert, slice(i * rows, (i + 1) * rows))
    return TextPart(checkpoint, tensors, places)
