"""What DeepSeek's models read of `config.json`, under its own names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.configs import (
    RopeConfig,
    check_experts,
    check_known,
    check_positive,
    layers_behind,
    read_config,
)
from inferno.contracts import AttentionSpec

_V3_DEFAULTS = {
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
}
"""Of fields that V3's published code gives one; transformers leaves out the first."""
_TOPK_METHODS = {"softmax": ("greedy", "group_limited_greedy"), "sigmoid": ("noaux_tc",)}


@frozen(kw_only=True)
class DeepseekConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0
    """0: queries are projected directly (V2-Lite)."""
    split_kv_b: bool = False
    """`kv_b_proj` is stored head by head, as `k_b_proj` and `v_b_proj` (GGUF files)."""
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int = 0
    scoring_func: str = "softmax"
    """"sigmoid" is V3's routing: a correction of each expert's score, groups worth their two
    best."""
    topk_method: str = ""
    """Empty: limited to groups if there are several."""
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 0
    """Layers after the last that predict further tokens; they are not run."""
    rope_interleave: bool = True
    yarn_log_multiplier: float | None = None
    """How GGUF files say the scaling's `mscale`."""
    rope: RopeConfig = RopeConfig()

    @classmethod
    def of_v2(cls, config: Mapping[str, Any]) -> DeepseekConfig:
        """Of DeepSeek-V2, and of any GGUF file: those that name no scoring mean V2's."""
        given = {name: value for name, value in config.items() if value is not None}
        if "qk_head_dim_mla" in given:
            given |= {
                "qk_head_dim": given["qk_head_dim_mla"],
                "v_head_dim": given["v_head_dim_mla"],
            }
        if "qk_nope_head_dim" not in given and {"qk_head_dim", "qk_rope_head_dim"} <= given.keys():
            given["qk_nope_head_dim"] = given["qk_head_dim"] - given["qk_rope_head_dim"]
        return cls._read(given)

    @classmethod
    def of_v3(cls, config: Mapping[str, Any]) -> DeepseekConfig:
        """Of DeepSeek-V3 and R1, Kimi K2, Moonlight."""
        return cls._read(
            {**_V3_DEFAULTS, **{name: value for name, value in config.items() if value is not None}}
        )

    @classmethod
    def _read(cls, config: Mapping[str, Any]) -> DeepseekConfig:
        rope = RopeConfig.from_json(config)
        read = read_config(cls, config)
        if (
            multiplier := read.yarn_log_multiplier
        ) is not None:  # llama.cpp stores a tenth, and one for both
            rope = attrs.evolve(rope, mscale=10 * multiplier, mscale_all_dim=10 * multiplier)
        read = attrs.evolve(read, rope=rope)
        check_known(config, "hidden_act", "silu", "swish")
        check_known(config, "attention_bias", False)
        check_known(config, "moe_layer_freq", 1)
        check_known(config, "attention_temperature_scale", 0.0)
        check_known(config, "scoring_func", *_TOPK_METHODS)
        check_known(config, "topk_method", *_TOPK_METHODS[read.scoring_func])
        if (
            read.scoring_func == "softmax"
        ):  # V2's own code and others disagree on what it means with a scaling factor
            check_known(config, "norm_topk_prob", False)
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "moe_intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "n_routed_experts",
            "n_shared_experts",
        )
        check_positive(
            **{
                name: getattr(read, name)
                for name in (*sizes, *(["q_lora_rank"] if read.q_lora_rank else []))
            }
        )
        check_experts(
            read.n_routed_experts, read.num_experts_per_tok, read.n_group, read.topk_group
        )
        rope.check_width(read.qk_rope_head_dim)
        return read

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts

    @property
    def num_groups(self) -> int:
        return 1 if self.topk_method == "greedy" else self.n_group

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        tied = ("lm_head.weight",) if self.tie_word_embeddings else ()
        return (
            "*.rotary_emb.inv_freq",
            *layers_behind(self.num_hidden_layers, self.num_nextn_predict_layers),
            *tied,
        )

    @property
    def attention_spec(self) -> AttentionSpec:
        scale = (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        if self.rope.rope_type != "default" and self.rope.mscale_all_dim:
            scale *= (
                0.1 * self.rope.mscale_all_dim * math.log(max(self.rope.factor, 1.0)) + 1.0
            ) ** 2
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=1,
            head_dim=self.kv_lora_rank + self.qk_rope_head_dim,
            latent_dim=self.kv_lora_rank,
            scale=scale,
        )

    def cache_specs(self) -> list[AttentionSpec]:
        return [self.attention_spec] * self.num_hidden_layers
