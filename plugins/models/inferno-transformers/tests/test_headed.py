"""Text models that transformers has only inside of models that read more than text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hosted_families import TINY

from inferno.errors import UnsupportedError
from inferno.testing import Catalog, TextPartTests, load_catalog
from inferno_transformers.config import HostedConfig


class TestStep3p7(TextPartTests):
    """Step 3.7: gates of heads, a window in one layer, experts in another."""

    computed_by = "*"
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

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog(only=["inferno-transformers"])


def test_alone_such_a_text_model_is_none_of_transformers() -> None:
    """Its class is of the whole model."""
    config = {**TestStep3p7.config["text_config"], "architectures": ["Step3p5ForCausalLM"]}
    with pytest.raises(UnsupportedError, match="has no causal language model of the type"):
        HostedConfig.from_json(config)
