"""What StableLM reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class StableLmConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as query heads."""
    max_position_embeddings: int = 4096
    layer_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    """Each query and key head has a norm with a weight of its own."""
    use_parallel_residual: bool = False
    has_mlp_norm: bool | None = None
    """How GGUF files say it: a parallel block has one norm."""
    tie_word_embeddings: bool = False
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> StableLmConfig:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads,
        )  # fmt: skip
        if read.hidden_size % read.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {read.hidden_size} is not divisible by num_attention_heads "
                f"{read.num_attention_heads}",
                "Check the model's config.json.",
            )
        parallel = read.use_parallel_residual if read.has_mlp_norm is None else not read.has_mlp_norm
        return attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            use_parallel_residual=parallel,
            rope=RopeScaling.from_json({"partial_rotary_factor": 0.25, **config}),
        )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

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
