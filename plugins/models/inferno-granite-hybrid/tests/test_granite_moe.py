"""Granite 3's mixtures of experts."""

from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_granite_hybrid.config import GraniteMoeConfig

MOE: dict[str, Any] = {
    "architectures": ["GraniteMoeForCausalLM"],
    "model_type": "granitemoe",
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.0625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 32,
    "logits_scaling": 3.0,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10_000,
    "router_aux_loss_coef": 0.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that granite-3.1-1b-a400m-instruct's config.json has."""


class TestGraniteMoe(ArchitectureTests):
    """granite-3.1-1b-a400m-instruct and 3b-a800m: experts in every layer, a tied head."""

    rerouted = True
    config = MOE
    gguf_unsaid = frozenset({"split_mlp"})


class TestShared(ArchitectureTests):
    """moe-7b-1b-active-shared-experts: an MLP beside the experts. Biases, an untied head, one
    key/value head."""

    rerouted = True
    config = {
        **MOE,
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "attention_bias": True,
        "num_key_value_heads": 1,
        "shared_intermediate_size": 48,
        "tie_word_embeddings": False,
    }
    gguf_unsaid = frozenset({"split_mlp"})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_local_experts": 0}, "num_local_experts|experts"),
        ({"shared_intermediate_size": -1}, "shared_intermediate_size"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        GraniteMoeConfig.from_json({**MOE, **damage})
