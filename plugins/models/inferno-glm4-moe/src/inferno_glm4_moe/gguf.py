"""The GGUF dialect of GLM-4.5. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"


def _glm4_moe(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Subtract the multi-token-prediction layers, which files include in the layer count."""
    further = fields.get("num_nextn_predict_layers", 0)
    return {**fields, "num_hidden_layers": fields["num_hidden_layers"] - further}


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add them."""
    further = config.get("num_nextn_predict_layers") or 0
    return {"num_hidden_layers": config["num_hidden_layers"] + further}


GLM4_MOE = Dialect(
    architecture="glm4moe",
    constants={"model_type": "glm4_moe"},
    fields={
        "num_experts": None,
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "scoring_func": "expert_gating_func",
        "num_nextn_predict_layers": "nextn_predict_layers",
    },
    modules={
        "blk.{n}.ffn_norm": None,
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{n}.exp_probs_b.bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_shexp": f"{_LAYER}.mlp.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_LAYER}.mlp.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_LAYER}.mlp.shared_experts.down_proj",
        "blk.{n}.nextn.eh_proj": f"{_LAYER}.eh_proj",
        "blk.{n}.nextn.embed_tokens": f"{_LAYER}.embed_tokens",
        "blk.{n}.nextn.enorm": f"{_LAYER}.enorm",
        "blk.{n}.nextn.hnorm": f"{_LAYER}.hnorm",
        "blk.{n}.nextn.shared_head_head": f"{_LAYER}.shared_head.head",
        "blk.{n}.nextn.shared_head_norm": f"{_LAYER}.shared_head.norm",
    },
    present={"attention_bias": "blk.0.attn_q.bias", "use_qk_norm": "blk.0.attn_q_norm.weight"},
    values={"scoring_func": {1: "softmax", 2: "sigmoid"}},
    config=_glm4_moe,
    inverse=_fields,
)

_NORMS = (
    "blk.{n}.ffn_norm",
    "blk.{n}.post_attention_norm",
    "blk.{n}.nextn.shared_head_norm",
)
LING = attrs.evolve(
    GLM4_MOE,
    architecture="bailingmoe2",
    modules={
        **{name: path for name, path in GLM4_MOE.modules.items() if name not in _NORMS},
        **dict.fromkeys(f"blk.{{n}}.attn_{qkv}" for qkv in "qkv"),  # one matrix, which is split
        "blk.{n}.layer_output_norm": f"{_LAYER}.shared_head.norm",
    },
    present={**GLM4_MOE.present, "attention_bias": "blk.0.attn_qkv.bias"},
)
