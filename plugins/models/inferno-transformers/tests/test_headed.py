"""Text models that transformers has only inside of models that read more than text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hosted_families import TINY

from inferno.errors import UnsupportedError
from inferno.testing import Catalog, TextPartTests, load_catalog
from inferno_transformers.config import HostedConfig


class HeadedTests(TextPartTests):
    """Text parts that the fallback computes."""

    computed_by = "*"

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog(only=["inferno-transformers"])


class TestStep3p7(HeadedTests):
    """Step 3.7: gates of heads, a window in one layer, experts in another."""

    config: ClassVar[Mapping[str, Any]] = {
        "model_type": "step3p7",
        "text_config": {
            **TINY,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "model_type": "step3p5",
            "head_dim": 16,
            "num_local_experts": 4,
            "share_expert_dim": 48,
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "sliding_window": 24,
        },
        "vision_config": {},
        "image_token_id": 150,
    }


class TestMolmo2(HeadedTests):
    """Molmo 2 4B and 8B: norms of each head, tokens beside the vocabulary of the head."""

    config: ClassVar[Mapping[str, Any]] = {
        "model_type": "molmo2",
        "text_config": {
            **TINY,
            "model_type": "molmo2_text",
            "head_dim": 16,
            "additional_vocab_size": 8,
            "qk_norm_type": "qwen3",
        },
        "vision_config": {"image_size": None, "head_dim": 16, "num_key_value_heads": 2},
        "adapter_config": {
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 48,
            "text_hidden_size": 64,
            "vision_feature_layer": [0],
        },
        "image_patch_id": 150,
    }


class TestMolmo2O(TestMolmo2):
    """Molmo 2 O 7B: norms after each part of a layer, and of all heads together."""

    config: ClassVar[Mapping[str, Any]] = {
        **TestMolmo2.config,
        "text_config": {
            **TestMolmo2.config["text_config"],
            "qk_norm_type": "olmo",
            "norm_after": True,
            "rope_scaling_layers": [1],
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
            },
        },
    }


class TestErnie45VL(HeadedTests):
    """ERNIE 4.5 VL: positions in three dimensions, experts of text and others of images."""

    config: ClassVar[Mapping[str, Any]] = {
        "model_type": "ernie4_5_vl_moe",
        "text_config": {
            **TINY,
            "model_type": "ernie4_5_vl_moe_text",
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": [48, 32],
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500_000.0,
                "mrope_section": [3, 3, 2],
            },
        },
        "vision_config": {},
        "image_token_id": 150,
    }


class TestCosmos3Edge(HeadedTests):
    """Cosmos 3 Edge: positions in three dimensions, an MLP of two matrices."""

    config: ClassVar[Mapping[str, Any]] = {
        "model_type": "cosmos3_edge",
        "text_config": {
            **TINY,
            "model_type": "cosmos3_edge_text",
            "head_dim": 16,
            "hidden_act": "relu2",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 2, 2],
            },
        },
        "vision_config": {},
        "projector_hidden_size": 48,
        "image_token_id": 150,
    }


def test_alone_such_a_text_model_is_none_of_transformers() -> None:
    """Its class is of the whole model."""
    config = {**TestStep3p7.config["text_config"], "architectures": ["Step3p5ForCausalLM"]}
    with pytest.raises(UnsupportedError, match="has no causal language model of the type"):
        HostedConfig.from_json(config)
