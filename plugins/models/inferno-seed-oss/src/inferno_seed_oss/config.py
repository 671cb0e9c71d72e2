"""The fields of `config.json` that Seed-OSS reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class SeedOssConfig(DecoderConfig):
    max_position_embeddings: int = 524_288
    attention_bias: bool = True
    """Whether q, k and v have biases."""
    attention_out_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        # Left out, they are those of the published model; null means what it does elsewhere.
        return super().from_json({"head_dim": 128, "num_key_value_heads": 8, **config})
