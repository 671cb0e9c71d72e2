"""The GGUF dialects of DeepSeek-V2 and V3, and of GLM-5. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.contracts import Dialect, RowJoin
from inferno.errors import CheckpointError

_ATTENTION = "model.layers.{n}.self_attn"
_MLP = "model.layers.{n}.mlp"


def _deepseek(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, **fields}
    if temperature := config.pop("temperature_scale", 0.0):
        raise CheckpointError(
            f"attention.temperature_scale is {temperature}: queries are scaled by their position",
            "Use another model: DeepSeek's, which this plugin computes, do not scale them.",
        )
    # If kv_b_proj is stored head by head, `_mla` fields have the head widths, and the others those
    # of the cached vectors: a `partial_rotary_factor` derived from them is wrong.
    key, value = config.pop("key_length"), config.pop("value_length")
    key, value = config.pop("key_length_mla", key), config.pop("value_length_mla", value)
    config |= {"qk_nope_head_dim": key - config["qk_rope_head_dim"], "v_head_dim": value}
    config |= {"num_key_value_heads": config["num_attention_heads"], "partial_rotary_factor": 1.0}
    # Converters write 0 for none.
    config["routed_scaling_factor"] = config.get("routed_scaling_factor") or 1.0
    multiplier = config.pop("yarn_log_multiplier", None)  # a tenth of both
    if multiplier is not None and (scaling := config.get("rope_scaling")):
        both = dict.fromkeys(("mscale", "mscale_all_dim"), 10 * multiplier)
        config["rope_scaling"] = {**scaling, **both}
    # The first V2 files do not name the scoring.
    if config.setdefault("scoring_func", "softmax") == "softmax":
        method = "greedy" if config["n_group"] == 1 else "group_limited_greedy"
        return {**config, "topk_method": method, "model_type": "deepseek_v2"}
    named = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    return {**config, "topk_method": "noaux_tc", **named}


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The head widths, as files with one matrix `attn_kv_b` have them."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    multiplier = scaling.get("mscale_all_dim")
    return {
        "key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "value_length": config["v_head_dim"],
        **({"yarn_log_multiplier": multiplier / 10} if multiplier else {}),
    }


DEEPSEEK = Dialect(
    architecture="deepseek2",
    fields={
        "head_dim": None,
        "num_key_value_heads": None,
        "num_experts": None,
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "key_length": "attention.key_length",
        "value_length": "attention.value_length",
        "key_length_mla": "attention.key_length_mla",
        "value_length_mla": "attention.value_length_mla",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "scoring_func": "expert_gating_func",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
        "temperature_scale": "attention.temperature_scale",
    },
    values={"scoring_func": {1: "softmax", 2: "sigmoid"}},
    modules={
        "blk.{n}.attn_k": None,
        "blk.{n}.attn_v": None,
        "blk.{n}.attn_q_a": f"{_ATTENTION}.q_a_proj",
        "blk.{n}.attn_q_a_norm": f"{_ATTENTION}.q_a_layernorm",
        "blk.{n}.attn_q_b": f"{_ATTENTION}.q_b_proj",
        "blk.{n}.attn_kv_a_mqa": f"{_ATTENTION}.kv_a_proj_with_mqa",
        "blk.{n}.attn_kv_a_norm": f"{_ATTENTION}.kv_a_layernorm",
        "blk.{n}.attn_kv_b": f"{_ATTENTION}.kv_b_proj",
        "blk.{n}.exp_probs_b.bias": f"{_MLP}.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_experts.down_proj",
    },
    # llama.cpp since April 2025; older files store `attn_kv_b`.
    joins={
        f"{_ATTENTION}.kv_b_proj": RowJoin(
            ("blk.{n}.attn_k_b", "blk.{n}.attn_v_b"), transposed=("blk.{n}.attn_k_b",)
        )
    },
    config=_deepseek,
    inverse=_fields,
)


def _glm_dsa(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Subtract the multi-token-prediction layers, which files include in the layer count. What they
    do not store is GLM-5's."""
    further = fields.get("num_nextn_predict_layers", 0)
    config = {**fields, "num_hidden_layers": fields["num_hidden_layers"] - further}
    named = {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"}
    return {**_deepseek({"scoring_func": "sigmoid", **config}), **named}


def _glm_dsa_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    further = config.get("num_nextn_predict_layers") or 0
    return {**_fields(config), "num_hidden_layers": config["num_hidden_layers"] + further}


_INDEXER = f"{_ATTENTION}.indexer"
_LAYER = "model.layers.{n}"

GLM_DSA = attrs.evolve(
    DEEPSEEK,
    architecture="glm-dsa",
    fields={
        **DEEPSEEK.fields,
        "index_n_heads": "attention.indexer.head_count",
        "index_head_dim": "attention.indexer.key_length",
        "index_topk": "attention.indexer.top_k",
        "num_nextn_predict_layers": "nextn_predict_layers",
    },
    modules={
        **DEEPSEEK.modules,
        "blk.{n}.indexer.attn_q_b": f"{_INDEXER}.wq_b",
        "blk.{n}.indexer.attn_k": f"{_INDEXER}.wk",
        "blk.{n}.indexer.k_norm": f"{_INDEXER}.k_norm",
        "blk.{n}.indexer.proj": f"{_INDEXER}.weights_proj",
        "blk.{n}.nextn.eh_proj": f"{_LAYER}.eh_proj",
        "blk.{n}.nextn.embed_tokens": f"{_LAYER}.embed_tokens",
        "blk.{n}.nextn.enorm": f"{_LAYER}.enorm",
        "blk.{n}.nextn.hnorm": f"{_LAYER}.hnorm",
        "blk.{n}.nextn.shared_head_head": f"{_LAYER}.shared_head.head",
        "blk.{n}.nextn.shared_head_norm": f"{_LAYER}.shared_head.norm",
    },
    config=_glm_dsa,
    inverse=_glm_dsa_fields,
)
"""Files do not say which layers share an index: all have one."""
