"""The fields of `config.json` that Qwen3-VL reads, under its names. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import ENCODER, DeepVisionConfig, SeesGridsDeeply, with_vision
from inferno.contracts import Checkpoint, RenamedView, SeeingPart
from inferno_qwen3.config import Qwen3Config


@frozen(kw_only=True)
class Qwen3VLConfig(Qwen3Config, SeesGridsDeeply):
    """A Qwen3 whose positions have three dimensions, and its encoder."""

    image_token_id: int = 151655
    mrope_section: tuple[int, ...] = (24, 20, 20)
    vision: DeepVisionConfig = DeepVisionConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a `seeing` checkpoint. Raises CheckpointError."""
        vision = DeepVisionConfig.from_json(config.get("vision_config") or {})
        return with_vision(super().from_json(config), config, vision)


def seeing(checkpoint: Checkpoint) -> SeeingPart:
    """View a checkpoint with its encoder under `visual`. An `Architecture.adapt`."""
    return SeeingPart(checkpoint, modules={ENCODER: ("model.visual", ENCODER)})


_DECODER = r"(?=(?:layers|embed_tokens|norm)\.)"
_ENCODER = r"(?=(?:blocks|merger|patch_embed|pos_embed|deepstack_merger_list)\.)"
_OF_COSMOS: Mapping[str, str] = {
    rf"^{_DECODER}": "model.language_model.",
    rf"^{_ENCODER}": "model.visual.",
    r"\.self_attn\.to_out\.": ".self_attn.o_proj.",
    r"\.self_attn\.to_([qkv])\.": r".self_attn.\1_proj.",
    r"\.self_attn\.norm_([qk])\.": r".self_attn.\1_norm.",
}
"""What checkpoints of Cosmos 3 Omni call otherwise than those of Qwen3-VL."""
_GENERATES = re.compile(
    r"\.add_[qkv]_proj\.|\.to_add_out\.|\.norm_added_[qk]\.|moe_gen"
    r"|^(?:proj|(?:audio|action)_proj)_(?:in|out)\.|^time_embedder\."
    r"|^(?:audio|action)_modality_embed$"
)
"""What they have beside a Qwen3-VL: for images, videos, sounds and actions that are generated."""


def cosmos(checkpoint: Checkpoint) -> SeeingPart:
    """View the Qwen3-VL in a checkpoint of Cosmos 3 Omni. An `Architecture.adapt`."""
    names = {}
    for stored in checkpoint.tensors:
        name = stored
        for theirs, ours in _OF_COSMOS.items():
            name = re.sub(theirs, ours, name)
        if not _GENERATES.search(stored):
            names[name] = stored
    return seeing(RenamedView(checkpoint, names))
