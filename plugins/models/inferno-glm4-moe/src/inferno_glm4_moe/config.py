"""The fields of `config.json` that GLM-4.5 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import MTPConfig, check_experts, check_known, check_positive


@frozen(kw_only=True)
class Glm4MoeConfig(MTPConfig):
    """GLM-4.5. `intermediate_size` is that of the layers without experts."""

    num_key_value_heads: int = 8
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    use_qk_norm: bool = False
    n_routed_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 1408
    """Width of one expert."""
    n_shared_experts: int = 1
    """Width of the shared expert, in routed experts."""
    first_k_dense_replace: int = 1
    """Number of first layers, without experts."""
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "scoring_func", "sigmoid", None)
        read = super().from_json({"partial_rotary_factor": 0.5, **config})
        check_positive(
            n_shared_experts=read.n_shared_experts, n_routed_experts=read.n_routed_experts
        )
        check_experts(
            read.n_routed_experts, read.num_experts_per_tok, read.n_group, read.topk_group
        )
        return read

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts
