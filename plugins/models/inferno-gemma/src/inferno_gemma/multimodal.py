"""Views of multimodal Gemma 3 checkpoints that show only the language model."""

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
    """Tensor name in the model -> stored name."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        stored = self.checkpoint.tensors
        return {name: stored[theirs] for name, theirs in self.names.items()}

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(self.names[name])


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """View the language model of a checkpoint. Published files have `language_model.model.layers`,
    some from transformers `model.language_model.layers`."""
    return TextPart(
        checkpoint,
        {_name(stored): stored for stored in checkpoint.tensors if not _SEES.match(stored)},
    )


def _name(stored: str) -> str:
    return re.sub(r"^model\.language_model\.", "model.", stored.removeprefix("language_model."))
