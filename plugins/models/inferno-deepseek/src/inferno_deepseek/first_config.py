"""What DeepSeekMoE reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import (
    DecoderConfig,
    check_experts,
    check_known,
    check_positive,
    with_dense_layers,
)


@frozen(kw_only=True)
class DeepseekMoEConfig(DecoderConfig):
    """`intermediate_size` is that of the layers without experts."""

    max_position_embeddings: int = 2048
    attention_bias: bool = False
    moe_intermediate_size: int
    """Width of one expert."""
    n_routed_experts: int
    n_shared_experts: int
    """Width of the shared expert, in routed experts."""
    num_experts_per_tok: int
    first_k_dense_replace: int = 0
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "scoring_func", None, "softmax")
        check_known(config, "topk_method", None, "greedy")
        check_known(config, "moe_layer_freq", None, 1)
        read = super().from_json(with_dense_layers(config))
        check_positive(
            moe_intermediate_size=read.moe_intermediate_size, n_shared_experts=read.n_shared_experts
        )
        check_experts(read.n_routed_experts, read.num_experts_per_tok)
        return read

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("*.rotary_emb.inv_freq", *super().unused_tensors)
