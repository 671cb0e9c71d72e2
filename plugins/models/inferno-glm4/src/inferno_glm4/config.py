"""The fields of `config.json` that GLM-4 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class Glm4Config(DecoderConfig):
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1.5625e-7
    attention_bias: bool = True
    """Whether q, k and v have biases; the output has none."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        return super().from_json({"partial_rotary_factor": 0.5, **config})
