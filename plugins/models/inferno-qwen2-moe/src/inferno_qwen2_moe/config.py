"""The fields of `config.json` that Qwen2's mixtures of experts read, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig, check_experts, check_known, check_positive


@frozen(kw_only=True)
class Qwen2MoeConfig(DecoderConfig):
    """Qwen2-MoE. `intermediate_size` is that of the layers without experts."""

    max_position_embeddings: int = 32_768
    qkv_bias: bool = True
    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    """Width of one expert."""
    shared_expert_intermediate_size: int = 5632
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    """Every n-th layer has experts, starting with the n-th."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers without experts nevertheless."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        # No published model has windows, and transformers' releases disagree on which layers would.
        check_known(config, "use_sliding_window", False, None)
        read = super().from_json(config)
        check_experts(read.num_experts, read.num_experts_per_tok)
        check_positive(
            decoder_sparse_step=read.decoder_sparse_step,
            moe_intermediate_size=read.moe_intermediate_size,
            shared_expert_intermediate_size=read.shared_expert_intermediate_size,
        )
        return read

    def has_experts(self, layer: int) -> bool:
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0
