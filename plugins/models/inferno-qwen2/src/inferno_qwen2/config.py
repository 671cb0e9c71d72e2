"""What Qwen2 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class Qwen2Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as query heads."""
    head_dim: int = 0
    """0: hidden_size / num_attention_heads."""
    max_position_embeddings: int = 32_768
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    max_window_layers: int = 28
    """With a window, layers from this one on have it, unless `layer_types` says which."""
    layer_types: tuple[str, ...] = ()
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Qwen2Config:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads,
        )  # fmt: skip
        unknown = set(read.layer_types) - {"full_attention", "sliding_attention"}
        if unknown or len(read.layer_types) not in (0, read.num_hidden_layers):
            raise CheckpointError(
                f"config.json: layer_types has {len(read.layer_types)} entries, {', '.join(sorted(unknown)) or 'all known'}",
                f"It must have {read.num_hidden_layers}, each full_attention or sliding_attention.",
            )
        return attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            head_dim=read.head_dim or read.hidden_size // read.num_attention_heads,
            rope=RopeScaling.from_json(config),
        )

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need(layer) for layer in range(self.num_hidden_layers)]

    def attention_need(self, layer: int) -> AttentionNeed:
        slides = self.layer_types[layer] == "sliding_attention" if self.layer_types else layer >= self.max_window_layers
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window if self.use_sliding_window and slides else None,
        )
