from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests, MTPTests
from inferno_deepseek.config import Glm4MoeLiteConfig
from inferno_deepseek.gguf import DEEPSEEK, GLM_FLASH

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
    "v_head_dim": 40,
    "vocab_size": 160,
}


GGUF: dict[str, Any] = {"key_length": 40, "value_length": 40}
"""What llama.cpp's converter derives."""


class TestGlm47Flash(ArchitectureTests):
    """GLM-4.7-Flash: V3 without groups and without a stretch of the rotary embedding."""

    rerouted = True
    config = FLASH
    gguf_fields = GGUF


class TestGlm47FlashMTP(MTPTests):
    """The multi-token-prediction layer of GLM-4.7-Flash."""

    config = {**FLASH, **GGUF, "num_nextn_predict_layers": 1}


def named(**fields: Any) -> tuple[str, str]:
    """Return the model and the scoring of a file that has the correction of V3's scores."""
    stored = {n: v for n, v in FLASH.items() if n not in ("architectures", "model_type")}
    assert DEEPSEEK.config is not None
    read = DEEPSEEK.config({**stored, **GGUF, "corrected": True, **fields})
    return read["model_type"], read["scoring_func"]


def test_gguf_files_without_a_scoring_are_glms_if_scores_are_corrected() -> None:
    """As llama.cpp's converter writes them: GLM's `config.json` does not name the scoring."""
    assert named() == ("glm4_moe_lite", "sigmoid")
    v2 = named(corrected=False, norm_topk_prob=False)
    assert v2 == ("deepseek_v2", "softmax")


def test_gguf_files_with_a_scoring_are_glms_if_they_have_its_shape() -> None:
    """Files that were written from a completed config, and ours."""
    assert GLM_FLASH.inverse is not None
    ours = GLM_FLASH.inverse(FLASH)
    assert ours["scoring_func"] == "sigmoid"
    assert named(**ours) == ("glm4_moe_lite", "sigmoid")
    yarn = {"rope_type": "yarn", "factor": 32.0}
    for other in (
        {"n_group": 8, "topk_group": 4},
        {"rope_scaling": yarn},
        {"q_lora_rank": None},
        {"value_length": 24},
        {"key_length_mla": 40, "value_length_mla": 24},
    ):
        assert named(**{**ours, **other}) == ("deepseek_v3", "sigmoid")


def test_stored_multi_token_prediction_layers_are_not_the_models() -> None:
    """The layer count of files includes them; files may also leave them out."""
    assert DEEPSEEK.config is not None and GLM_FLASH.inverse is not None
    fields = {**FLASH, **GGUF, "corrected": True, "num_hidden_layers": 3}
    for drafts, sizes in (([False, False, True], (2, 1)), ([False] * 3, (3, 0))):
        read = Glm4MoeLiteConfig.from_json(DEEPSEEK.config({**fields, "drafts": drafts}))
        assert (read.num_hidden_layers, read.num_nextn_predict_layers) == sizes
    whole = GLM_FLASH.inverse({**FLASH, "num_nextn_predict_layers": 1})
    assert whole["num_hidden_layers"] == 3


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
