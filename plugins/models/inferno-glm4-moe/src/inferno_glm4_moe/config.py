"""What GLM-4.5 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config


@frozen(kw_only=True)
class Glm4MoeConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of the layers without experts."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 8
    head_dim: int = 0
    """0: hidden_size / num_attention_heads."""
    n_routed_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 1408
    """Of one expert."""
    n_shared_experts: int = 1
    """The shared expert is as wide as this many."""
    first_k_dense_replace: int = 1
    """Layers without experts, the first ones."""
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    use_qk_norm: bool = False
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 0
    """Layers stored behind the last, which guess further tokens. They are not read."""
    counts_predict_layers: bool = False
    """Whether num_hidden_layers counts those too, as GGUF files do."""
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Glm4MoeConfig:
        config = {"partial_rotary_factor": 0.5, **config}
        read = read_config(cls, config)
        read = attrs.evolve(
            read,
            num_hidden_layers=read.num_hidden_layers - (read.num_nextn_predict_layers if read.counts_predict_layers else 0),
            head_dim=read.head_dim or read.hidden_size // max(1, read.num_attention_heads),
            rope=RopeScaling.from_json(config),
        )
        check_known(config, "hidden_act", "silu", "swish")
        check_known(config, "scoring_func", "sigmoid", None)
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads, num_key_value_heads=read.num_key_value_heads,
            num_experts_per_tok=read.num_experts_per_tok, n_shared_experts=read.n_shared_experts, n_group=read.n_group,
            topk_group=read.topk_group,
        )  # fmt: skip
        if read.n_routed_experts % read.n_group or read.topk_group > read.n_group:
            raise CheckpointError(
                f"config.json: topk_group is {read.topk_group}, n_group {read.n_group} of {read.n_routed_experts} experts",
                "Groups must be equally large, and no more may be picked than there are.",
            )
        if read.num_experts_per_tok > read.n_routed_experts // read.n_group * read.topk_group:
            raise CheckpointError(
                f"config.json: num_experts_per_tok is {read.num_experts_per_tok}, more than the picked groups have experts",
                "Check the model's config.json.",
            )
        return read

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        further = range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers)
        return (*(f"model.layers.{layer}.*" for layer in further), *(("lm_head.weight",) if self.tie_word_embeddings else ()))

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
