"""A view of gpt-oss checkpoints in which every expert has matrices of its own. Imports no torch.

They store the matrices of a layer's experts as one tensor, rows of gate and up taking turns; the
first axis of all is the expert. Dense ones are transposed, (E, I, O); those in MXFP4 are blocks (E,
O, G, 16) and their scales (E, O, G).

Suffixes: E experts, O rows, I columns, G groups of 32 columns.
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

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(?:_(bias|blocks|scales))?")


@frozen
class _Slice:
    """What a matrix of one expert is of a stored tensor."""

    stored: str
    expert: int
    rows: slice
    transposed: bool

    def of(self, tensor: Tensor) -> Tensor:
        whole = tensor[self.expert]
        return (whole.T if self.transposed else whole)[self.rows]


@frozen(eq=False)
class PerExpert(CheckpointView):
    """Matrices are read as views of what the format reads."""

    tensors: Mapping[str, TensorInfo]
    _slices: Mapping[str, _Slice] = field(alias="slices")

    def read(self, name: str) -> Tensor:
        found = self._slices.get(name)
        return (
            self.checkpoint.read(name)
            if found is None
            else found.of(self.checkpoint.read(found.stored))
        )


def per_expert(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names; itself where it has these already. Raises
    CheckpointError for a tensor that cannot be the experts'."""
    tensors: dict[str, TensorInfo] = {}
    slices: dict[str, _Slice] = {}
    for name, info in checkpoint.tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            tensors[name] = info
            continue
        experts, matrix, part = match.groups()
        transposed = part is None
        shape = (info.shape[0], *reversed(info.shape[1:])) if transposed else info.shape
        if len(shape) != {None: 3, "bias": 2, "blocks": 4, "scales": 3}[part] or (
            matrix != "down_proj" and shape[1] % 2
        ):
            raise CheckpointError(
                f"{name} of shape {info.shape} is no stack of experts", "The checkpoint is damaged."
            )
        both = matrix == "gate_up_proj"
        ours = (
            {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
            if both
            else {matrix: slice(None)}
        )
        one = TensorInfo(
            info.dtype,
            (shape[1] // len(ours), *shape[2:]),
            info.nbytes // max(1, shape[0] * len(ours)),
        )
        for expert in range(shape[0]):
            for own, rows in ours.items():
                path = f"{experts}.{expert}.{own}.{part or 'weight'}"
                tensors[path], slices[path] = one, _Slice(name, expert, rows, transposed)
    return PerExpert(checkpoint, tensors, slices) if slices else checkpoint
