"""What Qwen3.5 reads of `config.json` to see images, under its own names. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.configs import DeepVisionConfig, SeesGridsDeeply, with_vision
from inferno_qwen3_next.config import Qwen3NextConfig, dense_fields, sparse_fields


@frozen(kw_only=True)
class SeeingQwen35Config(Qwen3NextConfig, SeesGridsDeeply):
    """A Qwen3.5 whose positions have three dimensions, and its encoder, none of whose layers has
    features for the decoder."""

    image_token_id: int = 248056
    mrope_section: tuple[int, ...] = (11, 11, 10)
    vision: DeepVisionConfig = DeepVisionConfig(deepstack_visual_indexes=())


def qwen3_5(config: Mapping[str, Any]) -> SeeingQwen35Config:
    """Parse the config of a `seeing` checkpoint without experts. Raises CheckpointError."""
    return _seeing(config, dense_fields(config))


def qwen3_5_moe(config: Mapping[str, Any]) -> SeeingQwen35Config:
    """The same of one whose layers all have experts."""
    return _seeing(config, sparse_fields(config))


def _seeing(config: Mapping[str, Any], fields: Mapping[str, Any]) -> SeeingQwen35Config:
    given = {"deepstack_visual_indexes": (), **(config.get("vision_config") or {})}
    read = SeeingQwen35Config.from_json(fields)
    return with_vision(read, config, DeepVisionConfig.from_json(given))
