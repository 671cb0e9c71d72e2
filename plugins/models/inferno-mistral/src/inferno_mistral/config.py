"""What Mistral reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config

_FIRST_WINDOW = 4096
"""Where `config.json` says nothing of a window; null is none."""
_LAYER_TYPES = {"sliding_attention", "full_attention"}


@frozen(kw_only=True)
class MistralConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as query heads."""
    head_dim: int = 0
    """0: hidden_size / num_attention_heads."""
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    """Which layers have the window; none named: all."""
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> MistralConfig:
        read = read_config(cls, {"sliding_window": _FIRST_WINDOW, **config})
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads,
            sliding_window=1 if read.sliding_window is None else read.sliding_window,
        )  # fmt: skip
        if read.layer_types and (len(read.layer_types) != read.num_hidden_layers or set(read.layer_types) - _LAYER_TYPES):
            raise CheckpointError(
                f"config.json: layer_types is {list(read.layer_types)} for {read.num_hidden_layers} layers",
                f"It must name one of {', '.join(sorted(_LAYER_TYPES))} for each layer.",
            )
        if "llama_4_scaling_beta" in (config.get("rope_parameters") or {}):
            raise CheckpointError(
                "config.json: llama_4_scaling_beta scales queries by their position (Ministral 3)",
                "This plugin computes Mistral and Ministral 8B only.",
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
        slides = not self.layer_types or self.layer_types[layer] == "sliding_attention"
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window if slides else None,
        )
