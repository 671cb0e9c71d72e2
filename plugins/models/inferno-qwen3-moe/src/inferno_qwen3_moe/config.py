"""What Qwen3's mixtures of experts read of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import WindowedConfig, check_experts, check_positive


@frozen(kw_only=True)
class Qwen3MoeConfig(WindowedConfig):
    """Its `intermediate_size` is that of the layers without experts."""

    num_key_value_heads: int = 4
    max_position_embeddings: int = 32_768
    attention_bias: bool = False
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    """Of one expert."""
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    """Every so many layers has experts, beginning with that of this number, counted from 1."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers that have none all the same."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        # transformers 5 writes `num_local_experts` for what was published as `num_experts`.
        config = {"num_experts": config.get("num_local_experts"), **config}
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
