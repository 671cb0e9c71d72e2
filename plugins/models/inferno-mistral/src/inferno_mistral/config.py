"""The fields of `config.json` that Mistral reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import WindowedConfig
from inferno.errors import CheckpointError

_FIRST_WINDOW = 4096
"""Window if `config.json` omits it; null means none."""


@frozen(kw_only=True)
class MistralConfig(WindowedConfig):
    max_position_embeddings: int = 131_072

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        if "llama_4_scaling_beta" in (config.get("rope_parameters") or {}):
            raise CheckpointError(
                "config.json: llama_4_scaling_beta scales queries by their position (Ministral 3)",
                "Use another model: this plugin supports only Mistral and Ministral 8B.",
            )
        return super().from_json({"sliding_window": _FIRST_WINDOW, **config})
