"""Ling 2.0 and Ring 2.0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.errors import UnsupportedError
from inferno.testing import TINY_TEXT, SpellingTests, joined, renamed
from inferno_glm4_moe.spellings import LING

SMALL: dict[str, Any] = {
    **TINY_TEXT,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.5,
    "rope_theta": 600_000.0,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}


class TestLing(SpellingTests):
    """Ling-mini-2.0: experts in groups, norms of heads, one matrix for queries, keys and values,
    and a layer that predicts further tokens, which is not read."""

    twin = {
        **SMALL,
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "use_qk_norm": True,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
    }
    config = {
        **SMALL,
        "architectures": ["BailingMoeV2ForCausalLM"],
        "model_type": "bailing_moe",
        "num_experts": 8,
        "num_shared_experts": 1,
        "num_nextn_predict_layers": 1,
        "use_qkv_bias": False,
        "use_bias": False,
        "use_qk_norm": True,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "norm_head": False,
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "embed_tokens": "word_embeddings",
            "self_attn.o_proj": "attention.dense",
            "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
            "self_attn": "attention",
            "e_score_correction_bias": "expert_bias",
        }
        fused = joined(tensors, ("q_proj", "k_proj", "v_proj"), "query_key_value")
        further = {"model.layers.3.final_layernorm.weight": torch.ones(64)}
        return {**renamed(fused, names), **further}


@pytest.mark.parametrize(
    ("name", "value"), [("use_bias", True), ("moe_router_enable_expert_bias", False)]
)
def test_what_it_does_not_compute_is_refused(name: str, value: bool) -> None:
    with pytest.raises(UnsupportedError, match=name):
        LING.read({**TestLing.config, name: value})
