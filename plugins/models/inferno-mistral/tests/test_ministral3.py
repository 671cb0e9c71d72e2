from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_mistral.config import Ministral3Config
from inferno_mistral.gguf import MINISTRAL3

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
MINISTRAL: dict[str, Any] = {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_parameters": YARN,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 160,
}


class TestMinistral3(ArchitectureTests):
    """Ministral-3-3B: queries beyond the trained context are larger; a tied head."""

    config = MINISTRAL
    gguf_fields = {"query_beta": 0.1, "yarn_log_multiplier": 1.0}


class TestMuchLarger(ArchitectureTests):
    """Of no checkpoint: a factor that is seen in every choice, an untied head."""

    config = {
        **MINISTRAL,
        "num_key_value_heads": 1,
        "rope_parameters": {**YARN, "llama_4_scaling_beta": 2.0},
        "tie_word_embeddings": False,
    }
    gguf_fields = {"query_beta": 2.0, "yarn_log_multiplier": 1.0}


def test_a_gguf_file_without_a_factor_is_mistral_small_3() -> None:
    """llama.cpp's converter has one name for both."""
    assert MINISTRAL3.config is not None
    read = MINISTRAL3.config({"rope_theta": 1e9, "num_attention_heads": 32})
    assert read["architectures"] == ["MistralForCausalLM"]
    assert read["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e9}


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"rope_parameters": None}, "llama_4_scaling_beta"),
        ({"rope_parameters": {**YARN, "llama_4_scaling_beta": -1.0}}, "llama_4_scaling_beta"),
        ({"rope_parameters": {**YARN, "llama_4_scaling_beta": "big"}}, "llama_4_scaling_beta"),
        (
            {"rope_parameters": {**YARN, "original_max_position_embeddings": None}},
            "original_max_position_embeddings",
        ),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Ministral3Config.from_json({**MINISTRAL, **damage})
