"""The fields of `config.json` that Qwen3-VL reads, under its names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import ENCODER, DeepVisionConfig, SeesGridsDeeply, with_vision
from inferno.contracts import Checkpoint, SeeingPart
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
