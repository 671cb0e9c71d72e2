from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import FULL
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_granite_hybrid.config import LINEAR, GraniteHybridConfig

TINY: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.0625,
    "bos_token_id": 1,
    "embedding_multiplier": 12,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "intermediate_size": 32,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "logits_scaling": 3,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_proj_bias": False,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10_000,
    "router_aux_loss_coef": 0.01,
    "shared_intermediate_size": 64,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that Granite-4.0-H-Tiny's config.json has."""


class TestTiny(ArchitectureTests):
    """Granite-4.0-H-Tiny and H-Small: Mamba-2 and a few layers of attention without positions,
    experts beside a shared MLP."""

    config = TINY
    gguf_fields = {"mamba_inner": 128, "num_key_value_heads": [0, 0, 2, 0], "rotates": False}
    gguf_unsaid = frozenset({"split_mlp"})


class TestDense(ArchitectureTests):
    """Granite-4.0-H-Micro, H-1B: no experts. Groups of heads, biases, no bias of the convolution,
    an untied head."""

    config = {
        **TINY,
        "attention_bias": True,
        "mamba_conv_bias": False,
        "mamba_d_head": "auto",
        "mamba_n_groups": 4,
        "mamba_proj_bias": True,
        "num_experts_per_tok": 0,
        "num_local_experts": 0,
        "tie_word_embeddings": False,
    }
    gguf_fields = {
        "intermediate_size": 64,
        "mamba_inner": 128,
        "num_key_value_heads": [0, 0, 2, 0],
        "rotates": False,
    }
    gguf_unsaid = frozenset({"intermediate_size", "split_mlp"})


class TestAttention(ArchitectureTests):
    """Granite-4.0-Micro: attention in every layer, with rotary positions."""

    config = {
        **TINY,
        "layer_types": ["attention"] * 2,
        "num_experts_per_tok": 0,
        "num_hidden_layers": 2,
        "num_local_experts": 0,
        "position_embedding_type": "rope",
    }
    gguf_fields = {"intermediate_size": 64, "mamba_inner": 128}
    gguf_unsaid = frozenset({"intermediate_size", "mamba_conv_bias", "split_mlp"})


class TestStatesAlone(ArchitectureTests):
    """No attention in any layer: what leaving out `layer_types` means. A limited dt."""

    config = {
        **TINY,
        "layer_types": None,
        "num_hidden_layers": 2,
        "time_step_limit": [0.5, 1.5],
        # transformers' cache of such a model cannot say how long it is.
        "use_cache": False,
    }
    in_gguf = False


def test_layers_are_named_as_published_or_as_transformers_writes() -> None:
    config = GraniteHybridConfig.from_json(TINY)
    assert config.layer_types == (LINEAR, LINEAR, FULL, LINEAR)
    assert GraniteHybridConfig.from_json({**TINY, "layer_types": config.layer_types}) == config


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"mamba_n_heads": 7}, "mamba_n_heads"),
        ({"mamba_n_groups": 3}, "mamba_n_groups"),
        ({"mamba_d_state": 0}, "mamba_d_state"),
        ({"mamba_d_head": "wide"}, "mamba_d_head"),
        ({"layer_types": ["mamba"]}, "layer_types"),
        ({"layer_types": ["mamba"] * 3 + ["moe"]}, "layer_types"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type"),
        ({"time_step_limit": [2.0, 1.0]}, "time_step_limit"),
        ({"time_step_limit": "short"}, "time_step_limit"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        GraniteHybridConfig.from_json({**TINY, **damage})
