"""The fields of `config.json` that ERNIE 4.5 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig

_THETA = 500_000.0
"""The rotary base if `config.json` omits it."""


@frozen(kw_only=True)
class ErnieConfig(DecoderConfig):
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    use_bias: bool = False
    """Whether attention and MLP have biases."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        theta = config.get("rope_theta")
        defaults = {"head_dim": 128, "num_key_value_heads": 2}
        return super().from_json(
            {**defaults, **config, "rope_theta": _THETA if theta is None else theta}
        )
