"""The fields of `config.json` that Qwen3-VL's mixtures read, under its names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import ENCODER, DeepVisionConfig, SeesGridsDeeply, with_vision
from inferno.contracts import Checkpoint, SeeingPart
from inferno_qwen3_moe.checkpoint import per_expert
from inferno_qwen3_moe.config import Qwen3MoeConfig


@frozen(kw_only=True)
class Qwen3VLMoeConfig(Qwen3MoeConfig, SeesGridsDeeply):
    """A mixture whose positions have three dimensions, and its encoder."""

    image_token_id: int = 151655
    mrope_section: tuple[int, ...] = (24, 20, 20)
    vision: DeepVisionConfig = DeepVisionConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse the config of a `seeing` checkpoint. Raises CheckpointError."""
        vision = DeepVisionConfig.from_json(config.get("vision_config") or {})
        # The weights of the experts that are picked sum to 1, though the config does not say it.
        read = super().from_json({**config, "norm_topk_prob": True})
        return with_vision(read, config, vision)


def seeing(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint with its encoder under `visual`, and with matrices for each expert. An
    `Architecture.adapt`."""
    return per_expert(SeeingPart(checkpoint, modules={ENCODER: ("model.visual", ENCODER)}))
