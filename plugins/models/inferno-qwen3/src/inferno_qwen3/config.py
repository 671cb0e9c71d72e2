"""What Qwen3 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.modelconfig import WindowedConfig


@frozen(kw_only=True)
class Qwen3Config(WindowedConfig):
    head_dim: int = 128
    max_position_embeddings: int = 32_768
    attention_bias: bool = False
    max_window_layers: int = 28
    """Layers from this one on have the window."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        return super().from_json({**config, "sliding_window": window})

    def slides(self, layer: int) -> bool:
        return layer >= self.max_window_layers
