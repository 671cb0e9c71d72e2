"""Views of multimodal Gemma 3 checkpoints that show only the language model."""

from __future__ import annotations

import re

from inferno.contracts import Checkpoint, RenamedView

_SEES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """View the language model of a checkpoint. Published files have `language_model.model.layers`,
    some from transformers `model.language_model.layers`."""
    return RenamedView(
        checkpoint,
        {_name(stored): stored for stored in checkpoint.tensors if not _SEES.match(stored)},
    )


def _name(stored: str) -> str:
    return re.sub(r"^model\.language_model\.", "model.", stored.removeprefix("language_model."))
