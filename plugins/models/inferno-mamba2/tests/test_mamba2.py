from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_mamba2.config import Mamba2Config

TINY: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "bos_token_id": 0,
    "chunk_size": 256,
    "conv_kernel": 4,
    "eos_token_id": 0,
    "expand": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "layer_norm_epsilon": 1e-5,
    "n_groups": 4,
    "norm_before_gate": True,
    "num_heads": 8,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "rms_norm": True,
    "state_size": 32,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_init_scheme": "random",
    "time_step_limit": [0.0, float("inf")],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "time_step_rank": 256,
    "time_step_scale": 1.0,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "vocab_size": 160,
}
"""Every field that Mamba-Codestral-7B-v0.1's config.json has."""


class TestMamba2(ArchitectureTests):
    """Mamba-Codestral-7B: heads in groups, the residual stream in float32."""

    config = TINY


class TestSmall(ArchitectureTests):
    """One group, biases, a tied head, a residual stream of the compute type, a limited dt."""

    config = {
        **TINY,
        "conv_kernel": 3,
        "n_groups": 1,
        "residual_in_fp32": False,
        "tie_word_embeddings": True,
        "time_step_limit": [0.01, 0.5],
        "use_bias": True,
        "use_conv_bias": False,
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_heads": 7}, "num_heads"),
        ({"n_groups": 3}, "n_groups"),
        ({"state_size": 0}, "state_size"),
        ({"time_step_limit": [1.0]}, "time_step_limit"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Mamba2Config.from_json({**TINY, **damage})
