from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_deepseek.config import Glm4MoeLiteConfig

FLASH: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 64,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1_000_000.0,
    "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 24,
    "vocab_size": 160,
}


class TestGlm47Flash(ArchitectureTests):
    """GLM-4.7-Flash: V3 without groups and without a stretch of the rotary embedding."""

    rerouted = True
    config = FLASH


def test_the_dense_layers_of_glm_47_flash_are_counted_or_typed() -> None:
    read = Glm4MoeLiteConfig.from_json(FLASH)
    assert read.first_k_dense_replace == 1
    without = {name: value for name, value in FLASH.items() if name != "first_k_dense_replace"}
    assert Glm4MoeLiteConfig.from_json(without) == read
    typed = {**without, "mlp_layer_types": ["dense", "sparse"]}
    assert Glm4MoeLiteConfig.from_json(typed) == read
    for types in (["sparse", "dense"], ["dense"], "dense", ["moe", "moe"]):
        with pytest.raises(CheckpointError, match="mlp_layer_types"):
            Glm4MoeLiteConfig.from_json({**without, "mlp_layer_types": types})
