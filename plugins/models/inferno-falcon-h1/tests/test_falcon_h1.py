from __future__ import annotations

from typing import Any

import pytest

from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_falcon_h1.config import FalconH1Config

H1: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_in_multiplier": 0.5,
    "attention_out_multiplier": 1.25,
    "bos_token_id": 1,
    "embedding_multiplier": 5.65685424949238,
    "eos_token_id": 11,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "intermediate_size": 96,
    "key_multiplier": 0.7,
    "lm_head_multiplier": 0.25,
    "mamba_chunk_size": 128,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_ssm": 96,
    "mamba_d_state": 32,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 6,
    "mamba_norm_before_gate": False,
    "mamba_proj_bias": False,
    "mamba_rms_norm": False,
    "mamba_use_mlp": True,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "mlp_expansion_factor": 8,
    "mlp_multipliers": [0.88, 0.6],
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "projectors_bias": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1e11,
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.7, 0.5, 0.35, 0.9, 0.6],
    "ssm_out_multiplier": 0.47,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 160,
}
"""Fields of Falcon-H1-0.5B-Instruct's config.json."""


FACTORS = frozenset(name for name in H1 if "multiplier" in name)
"""What files have in their matrices."""


class TestH1(ArchitectureTests):
    """Falcon-H1-0.5B to 7B: a state without a norm beside attention in every layer, a tied head."""

    config = H1
    gguf_fields = {"mamba_inner": 96}
    gguf_unsaid = FACTORS | {"tie_word_embeddings"}


class TestNormed(ArchitectureTests):
    """Falcon-H1-34B: groups of a state's output are normalized, after the gate. Biases, an untied
    head."""

    config = {
        **H1,
        "attention_bias": True,
        "mamba_n_groups": 2,
        "mamba_proj_bias": True,
        "mamba_rms_norm": True,
        "mlp_bias": True,
        "projectors_bias": True,
        "tie_word_embeddings": False,
    }
    gguf_fields = {"mamba_inner": 96}
    gguf_unsaid = FACTORS


class TestNormFirst(ArchitectureTests):
    """Of no checkpoint: normalized before the gate; no factors, the width that is expanded, a
    limited dt."""

    config = {
        **{name: value for name, value in H1.items() if "multiplier" not in name},
        "mamba_d_head": "auto",
        "mamba_d_ssm": None,
        "mamba_n_heads": 8,
        "mamba_norm_before_gate": True,
        "mamba_rms_norm": True,
        "time_step_limit": [0.0, 0.8],
    }
    in_gguf = False


def test_a_layer_has_attention_and_a_state() -> None:
    read = FalconH1Config.from_json(H1)
    assert [type(spec) for spec in read.cache_specs()] == [AttentionSpec, StateSpec] * 2
    assert read.attention_spec(0).scale == pytest.approx(0.7 / 4)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mamba_n_heads": 7}, "mamba_n_heads"),
        ({"mamba_n_groups": 4}, "mamba_n_groups"),
        ({"mamba_d_state": 0}, "mamba_d_state"),
        ({"mamba_d_head": "wide"}, "mamba_d_head"),
        ({"mlp_multipliers": [1.0]}, "mlp_multipliers"),
        ({"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers"),
        ({"time_step_limit": "short"}, "time_step_limit"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        FalconH1Config.from_json({**H1, **damage})
