"""What Qwen3's mixtures of experts read of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class Qwen3MoeConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of the layers without experts."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 4
    head_dim: int = 0
    """0: hidden_size / num_attention_heads."""
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 0
    """Of one expert. 0, as in the first GGUF files: intermediate_size / num_experts_per_tok."""
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    """Every so many layers has experts, beginning with that of this number, counted from 1."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers that have none all the same."""
    max_position_embeddings: int = 32_768
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Qwen3MoeConfig:
        read = read_config(cls, _renamed(config))
        check_known(config, "hidden_act", "silu", "swish")
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads, num_key_value_heads=read.num_key_value_heads,
            num_experts_per_tok=read.num_experts_per_tok, decoder_sparse_step=read.decoder_sparse_step,
        )  # fmt: skip
        if read.num_experts_per_tok > read.num_experts:
            raise CheckpointError(
                f"config.json: num_experts_per_tok is {read.num_experts_per_tok} of {read.num_experts} experts",
                "Check the model's config.json.",
            )
        return attrs.evolve(
            read,
            head_dim=read.head_dim or read.hidden_size // read.num_attention_heads,
            moe_intermediate_size=read.moe_intermediate_size or read.intermediate_size // read.num_experts_per_tok,
            rope=RopeScaling.from_json(config),
        )

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def has_experts(self, layer: int) -> bool:
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    @property
    def attention_need(self) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window if self.use_sliding_window else None,
        )

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need] * self.num_hidden_layers


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 writes `num_local_experts` for what was published as `num_experts`."""
    return {"num_experts": config.get("num_local_experts"), **config}
