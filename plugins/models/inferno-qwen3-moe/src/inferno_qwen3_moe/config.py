"""The fields of `config.json` that Qwen3's mixtures of experts read, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import WindowedConfig, check_experts, check_positive


@frozen(kw_only=True)
class Qwen3MoeConfig(WindowedConfig):
    """Qwen3-MoE. `intermediate_size` is that of the layers without experts."""

    num_key_value_heads: int = 4
    max_position_embeddings: int = 32_768
    attention_bias: bool = False
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    """Width of one expert."""
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    """Every n-th layer has experts, starting with the n-th."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers without experts nevertheless."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        # transformers 5 writes the published `num_experts` as `num_local_experts`.
        config = {"num_experts": config.get("num_local_experts"), **config}
        if config.get("model_type") == "qwen3_vl_moe_text":  # does not say it, and always does
            config["norm_topk_prob"] = True
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        read = super().from_json({**config, "sliding_window": window, "layer_types": None})
        check_experts(read.num_experts, read.num_experts_per_tok)
        check_positive(
            decoder_sparse_step=read.decoder_sparse_step,
            moe_intermediate_size=read.moe_intermediate_size,
        )
        return read

    def has_experts(self, layer: int) -> bool:
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0
