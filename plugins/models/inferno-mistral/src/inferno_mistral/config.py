"""What Mistral reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import WindowedConfig
from inferno.errors import CheckpointError

_FIRST_WINDOW = 4096
"""Where `config.json` says nothing of a window; null is none."""


@frozen(kw_only=True)
class MistralConfig(WindowedConfig):
    max_position_embeddings: int = 131_072

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        if "llama_4_scaling_beta" in (config.get("rope_parameters") or {}):
            raise CheckpointError(
                "config.json: llama_4_scaling_beta scales queries by their position (Ministral 3)",
                "This plugin computes Mistral and Ministral 8B only.",
            )
        return super().from_json({"sliding_window": _FIRST_WINDOW, **config})
