"""What GLM-4 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class Glm4Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1.5625e-7
    attention_bias: bool = True
    """Of q, k and v; the output has none."""
    tie_word_embeddings: bool = False
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Glm4Config:
        check_known(config, "hidden_act", "silu", "swish")
        rope = RopeScaling.from_json({"partial_rotary_factor": 0.5, **config})
        read = attrs.evolve(read_config(cls, config), rope=rope)
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads, num_key_value_heads=read.num_key_value_heads,
            head_dim=read.head_dim,
        )  # fmt: skip
        return read

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    @property
    def attention_need(self) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need] * self.num_hidden_layers
