"""Ling 2.0 and Ring 2.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.errors import UnsupportedError
from inferno.testing import TINY_TEXT, MTPTests, SpellingTests, joined, renamed
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


def named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """GLM's tensors as Ling has them."""
    names = {
        "embed_tokens": "word_embeddings",
        "self_attn.o_proj": "attention.dense",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "self_attn": "attention",
        "e_score_correction_bias": "expert_bias",
    }
    return renamed(joined(tensors, ("q_proj", "k_proj", "v_proj"), "query_key_value"), names)


class TestLing(SpellingTests):
    """Ling-mini-2.0: experts in groups, norms of heads, one matrix for queries, keys and values,
    and a layer that predicts further tokens, which is read for drafts only."""

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
        further = {"model.layers.3.final_layernorm.weight": torch.ones(64)}
        return {**named(tensors), **further}


@pytest.mark.slow
class TestLingMTP(MTPTests):
    """The layer of Ling 2.0 that predicts further tokens: GLM-4.5's but for a norm's name."""

    twin = {**TestLing.twin, "num_nextn_predict_layers": 1}
    config = TestLing.config

    @classmethod
    def stored(cls, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        copies = ("layers.3.embed_tokens.weight", "shared_head.head.weight")  # it stores none
        own = {name: tensor for name, tensor in tensors.items() if not name.endswith(copies)}
        return renamed(named(own), {"shared_head.norm": "final_layernorm"})

    test_a_gguf_file_gives_the_same_drafts: Any = None  # it writes what is under the family's names


@pytest.mark.parametrize(
    ("name", "value"), [("use_bias", True), ("moe_router_enable_expert_bias", False)]
)
def test_what_it_does_not_compute_is_refused(name: str, value: bool) -> None:
    with pytest.raises(UnsupportedError, match=name):
        LING.read({**TestLing.config, name: value})
