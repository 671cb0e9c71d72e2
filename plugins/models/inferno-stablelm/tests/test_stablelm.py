from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_stablelm.config import StableLmConfig
from inferno_stablelm.gguf import STABLELM as STABLELM_GGUF

STABLELM: dict[str, Any] = {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "layer_norm_eps": 1e-5,
    "rope_theta": 10_000,
    "tie_word_embeddings": False,
}


class TestStableLm3B(ArchitectureTests):
    """stablelm-3b-4e1t and stablelm-zephyr-3b: a quarter of each head turns, as where config.json
    says nothing of it."""

    config = STABLELM


class TestStableLm2(ArchitectureTests):
    """stablelm-2-1_6b: biases on queries, keys and values."""

    config = {**STABLELM, "use_qkv_bias": True, "partial_rotary_factor": 0.5}


class TestStableLm2Of12B(ArchitectureTests):
    """stablelm-2-12b: parallel blocks, a norm for each query and key head, grouped queries."""

    config = {
        **STABLELM,
        "num_key_value_heads": 2,
        "use_parallel_residual": True,
        "qk_layernorm": True,
        "partial_rotary_factor": 0.25,
    }


class TestTied(ArchitectureTests):
    """Of no checkpoint: a tied head, whole heads that turn, norms for heads in a block that is not
    parallel."""

    config = {
        **STABLELM,
        "tie_word_embeddings": True,
        "qk_layernorm": True,
        "partial_rotary_factor": 1.0,
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_parallel_residual": "yes"}, "use_parallel_residual"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        StableLmConfig.from_json({**STABLELM, **damage})


def test_a_block_of_a_gguf_file_is_parallel_where_it_has_one_norm() -> None:
    """llama.cpp's converter writes `use_parallel_residual` as true where config.json lacks it."""
    assert STABLELM_GGUF.config is not None
    for has_norm in (True, False):
        read = STABLELM_GGUF.config({**STABLELM, "has_mlp_norm": has_norm})
        assert read == {**STABLELM, "use_parallel_residual": not has_norm}
