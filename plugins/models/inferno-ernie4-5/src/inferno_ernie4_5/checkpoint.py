"""A view of checkpoints in which the routers' biases have their usual names and shapes. Imports no
torch until one is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from inferno.contracts import Checkpoint, RenamedView, TensorInfo, with_head

if TYPE_CHECKING:
    from torch import Tensor

_PUBLISHED = ".mlp.moe_statics.e_score_correction_bias"
_USUAL = ".mlp.gate.e_score_correction_bias"


def usual_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the model's names, with those of `with_head`."""
    whole = with_head(checkpoint)
    return _Flat(whole, {name.replace(_PUBLISHED, _USUAL): name for name in whole.tensors})


class _Flat(RenamedView):
    """Biases are stored as one row."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: evolve(info, shape=info.shape[-1:]) if name.endswith(_USUAL) else info
            for name, info in super().tensors.items()
        }

    def read(self, name: str) -> Tensor:
        tensor = super().read(name)
        return tensor.flatten() if name.endswith(_USUAL) else tensor
