"""What Qwen3 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class Qwen3Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    max_position_embeddings: int = 32_768
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: tuple[str, ...] = ()
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Qwen3Config:
        read = attrs.evolve(read_config(cls, config), rope=RopeScaling.from_json(config))
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads, num_key_value_heads=read.num_key_value_heads,
            head_dim=read.head_dim,
        )  # fmt: skip
        return read

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need(layer) for layer in range(self.num_hidden_layers)]

    def attention_need(self, layer: int) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window if self._slides(layer) else None,
        )

    def _slides(self, layer: int) -> bool:
        if self.layer_types:
            return self.layer_types[layer] == "sliding_attention"
        return self.use_sliding_window and layer >= self.max_window_layers
