"""The fields of `config.json` that DeepSeek's models read, under its names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from attrs import frozen

from inferno.configs import (
    MTPConfig,
    check_experts,
    check_known,
    check_positive,
    with_dense_layers,
)
from inferno.contracts import AttentionSpec


@frozen(kw_only=True)
class DeepseekConfig(MTPConfig):
    """Fields of both generations. `head_dim` is the rotated part of a head, as in transformers."""

    scoring: ClassVar[str]
    """The required `scoring_func`: softmax, or sigmoid with a correction of each score."""

    moe_intermediate_size: int
    """Width of one expert. `intermediate_size` is that of the layers without experts."""
    kv_lora_rank: int
    q_lora_rank: int = 0
    """0: queries are projected directly (V2-Lite)."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int = 0
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        given = {name: value for name, value in config.items() if value is not None}
        check_known(given, "scoring_func", cls.scoring)
        check_known(given, "attention_bias", False)
        check_known(given, "moe_layer_freq", 1)
        rotated = given.get("qk_rope_head_dim")
        read = super().from_json({**given, "head_dim": rotated, "num_key_value_heads": None})
        check_positive(
            moe_intermediate_size=read.moe_intermediate_size,
            kv_lora_rank=read.kv_lora_rank,
            q_lora_rank=read.q_lora_rank or 1,
            qk_nope_head_dim=read.qk_nope_head_dim,
            qk_rope_head_dim=read.qk_rope_head_dim,
            v_head_dim=read.v_head_dim,
            n_shared_experts=read.n_shared_experts,
        )
        picked = read.num_experts_per_tok
        check_experts(read.n_routed_experts, picked, read.n_group, read.topk_group)
        return read

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # The first conversions of Kimi K2 stored the rotary tables of every layer.
        return ("*.rotary_emb.inv_freq", *super().unused_tensors)

    def attention_spec(self, layer: int) -> AttentionSpec:
        scale = (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        if self.rope.rope_type != "default" and self.rope.mscale_all_dim:
            stretched = math.log(max(self.rope.factor, 1.0))
            scale *= (0.1 * self.rope.mscale_all_dim * stretched + 1.0) ** 2
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=1,
            head_dim=self.kv_lora_rank + self.qk_rope_head_dim,
            latent_dim=self.kv_lora_rank,
            scale=scale,
        )


@frozen(kw_only=True)
class DeepseekV2Config(DeepseekConfig):
    """DeepSeek-V2: softmax scores; a group scores as its best expert."""

    scoring = "softmax"

    topk_method: str = "group_limited_greedy"

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "topk_method", None, "greedy", "group_limited_greedy")
        # V2's own code and other implementations disagree on its meaning with a scaling factor.
        check_known(config, "norm_topk_prob", None, False)
        return super().from_json(config)

    @property
    def num_groups(self) -> int:
        return 1 if self.topk_method == "greedy" else self.n_group


@frozen(kw_only=True)
class DeepseekV3Config(DeepseekConfig):
    """DeepSeek-V3 and R1, Kimi K2, Moonlight: sigmoid scores with a correction; a group scores as
    its two best experts."""

    scoring = "sigmoid"

    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    n_group: int = 8
    topk_group: int = 4
    rope_interleave: bool = True

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "topk_method", None, "noaux_tc")
        return super().from_json(with_dense_layers(config))


@frozen(kw_only=True)
class Glm4MoeLiteConfig(DeepseekV3Config):
    """GLM-4.7-Flash, which computes what DeepSeek-V3 does, with one group of experts."""

    routed_scaling_factor: float = 1.8
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: int = 1
