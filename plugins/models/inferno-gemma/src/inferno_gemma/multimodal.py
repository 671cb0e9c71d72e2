"""Gemma 3 checkpoints that hold a vision tower beside the language model: the latter, as if it were
stored alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from inferno.contracts import Checkpoint, CheckpointView, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

_SEES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")


@frozen(eq=False)
class TextPart(CheckpointView):
    names: Mapping[str, str]
    """The model's name of each tensor -> the stored one."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        stored = self.checkpoint.tensors
        return {name: stored[theirs] for name, theirs in self.names.items()}

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(self.names[name])


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """Published files say `language_model.model.layers`, some that transformers wrote
    `model.language_model.layers`."""
    return TextPart(
        checkpoint,
        {_name(stored): stored for stored in checkpoint.tensors if not _SEES.match(stored)},
    )


def _name(stored: str) -> str:
    return re.sub(r"^model\.language_model\.", "model.", stored.removeprefix("language_model."))
