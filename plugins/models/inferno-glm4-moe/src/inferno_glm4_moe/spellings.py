"""Ling 2.0 and Ring 2.0, which GLM-4.5's code computes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Fused, Spelling

_LAYER = "model.layers.{n}"
_ATTENTION = f"{_LAYER}.self_attn"


def _ling(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"use_qk_norm": True, "partial_rotary_factor": 1.0, **fields}


LING = Spelling(
    name="BailingMoeV2ForCausalLM",
    model_types=("bailing_moe_v2",),
    fields={
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
        "use_qkv_bias": "attention_bias",
        "score_function": "scoring_func",
    },
    drafts=True,
    fixed={"use_bias": False, "moe_router_enable_expert_bias": True, "norm_head": False},
    config=_ling,
    modules={
        "model.word_embeddings": "model.embed_tokens",
        f"{_LAYER}.attention.dense": f"{_ATTENTION}.o_proj",
        f"{_LAYER}.attention.query_layernorm": f"{_ATTENTION}.q_norm",
        f"{_LAYER}.attention.key_layernorm": f"{_ATTENTION}.k_norm",
        f"{_LAYER}.mlp.gate.expert_bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
        f"{_LAYER}.final_layernorm": f"{_LAYER}.shared_head.norm",
    },
    fused={
        f"{_LAYER}.attention.query_key_value": Fused(
            {
                f"{_ATTENTION}.q_proj": "num_attention_heads",
                f"{_ATTENTION}.k_proj": "num_key_value_heads",
                f"{_ATTENTION}.v_proj": "num_key_value_heads",
            }
        )
    },
    checkpoints=(
        "inclusionAI/Ling-mini-2.0",
        "inclusionAI/Ling-flash-2.0",
        "inclusionAI/Ring-mini-2.0",
        "inclusionAI/Ring-flash-2.0",
        "inclusionAI/Ling-1T",
        "inclusionAI/Ring-1T",
    ),
)
