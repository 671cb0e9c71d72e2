"""What gpt-oss reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config

THETA = 150_000.0
SLIDING, FULL = "sliding_attention", "full_attention"


@frozen(kw_only=True)
class GptOssConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of one expert."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    num_local_experts: int
    num_experts_per_tok: int
    head_dim: int = 64
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int = 128
    layer_types: tuple[str, ...] = ()
    """Empty: sliding and full ones take turns."""
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    tie_word_embeddings: bool = False
    rope_truncate: bool | None = None
    """`truncate` of the rotary scaling, which GGUF files have no key for."""
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> GptOssConfig:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads, num_key_value_heads=read.num_key_value_heads,
            head_dim=read.head_dim, num_local_experts=read.num_local_experts, num_experts_per_tok=read.num_experts_per_tok,
            sliding_window=read.sliding_window,
        )  # fmt: skip
        if read.num_experts_per_tok > read.num_local_experts:
            raise CheckpointError(
                f"config.json: num_experts_per_tok {read.num_experts_per_tok} of num_local_experts {read.num_local_experts}",
                "Check the model's config.json.",
            )
        layers = read.num_hidden_layers
        types = read.layer_types or tuple(FULL if layer % 2 else SLIDING for layer in range(layers))
        if len(types) != layers or not set(types) <= {SLIDING, FULL}:
            raise CheckpointError(
                f"config.json: layer_types are {sorted(set(types))}, {len(types)} for {layers} layers",
                f"Each must be {SLIDING} or {FULL}.",
            )
        rope = RopeScaling.from_json(config, theta=THETA)
        if rope.rope_type == "default":
            raise CheckpointError(
                "config.json: rope_scaling is missing", "Every gpt-oss is stretched, by 32 from 4096 tokens: say so there."
            )
        if read.rope_truncate is not None:
            rope = attrs.evolve(rope, truncate=read.rope_truncate)
        return attrs.evolve(read, layer_types=types, rope=rope)

    @property
    def num_experts(self) -> int:
        return self.num_local_experts

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def attention_need(self, layer: int) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window if self.layer_types[layer] == SLIDING else None,
            sinks=True,
        )

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need(layer) for layer in range(self.num_hidden_layers)]
