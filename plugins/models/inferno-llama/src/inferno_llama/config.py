"""What Llama reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as query heads (the first Llamas)."""
    head_dim: int = 0
    """0: hidden_size / num_attention_heads."""
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> LlamaConfig:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads,
        )  # fmt: skip
        return attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            head_dim=read.head_dim or read.hidden_size // read.num_attention_heads,
            rope=RopeScaling.from_json(config),
        )

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # The first conversions stored the rotary tables of every layer.
        return ("*.rotary_emb.inv_freq", *(("lm_head.weight",) if self.tie_word_embeddings else ()))

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
