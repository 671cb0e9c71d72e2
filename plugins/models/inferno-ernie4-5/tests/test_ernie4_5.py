from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_ernie4_5.config import ErnieConfig, ErnieMoeConfig

ERNIE: dict[str, Any] = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "model_type": "ernie4_5",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 32,  # more than hidden_size / heads, as there
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that ERNIE-4.5-0.3B-PT's config.json has."""


class TestErnie(ArchitectureTests):
    """ERNIE-4.5-0.3B: grouped queries, a tied head."""

    config = ERNIE


class TestBiases(ArchitectureTests):
    """Of no checkpoint: every bias, one key/value head, heads of hidden size / heads, an untied
    head, a linear stretch."""

    config = {
        **ERNIE,
        "head_dim": None,
        "num_key_value_heads": 1,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": False,
        "use_bias": True,
    }


MIXTURE: dict[str, Any] = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "moe_capacity": [64, 64, 64],
    "moe_gate": "topk",
    "moe_intermediate_size": 32,
    "moe_k": 3,
    "moe_layer_end_index": 2,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_num_experts": 8,
    "moe_num_shared_experts": 2,
    "moe_use_aux_free": True,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "vocab_size": 160,
}
"""Fields of ERNIE-4.5-21B-A3B-PT's config.json."""


class TestMixture(ArchitectureTests):
    """ERNIE-4.5-21B-A3B: a first layer without experts, two shared ones, a tied head."""

    config = MIXTURE
    rerouted = True


class TestAlternating(ArchitectureTests):
    """ERNIE-4.5-300B-A47B has no shared expert; of no checkpoint: experts in every second layer, an
    untied head."""

    config = {
        **MIXTURE,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 2,
        "moe_num_shared_experts": 0,
        "num_hidden_layers": 4,
        "tie_word_embeddings": False,
    }
    rerouted = True


class TestEnd(ArchitectureTests):
    """Of no checkpoint: last layers without experts."""

    config = {**MIXTURE, "moe_layer_start_index": 0, "moe_layer_end_index": 1}
    rerouted = True
    in_gguf = False  # llama.cpp's files have no such field


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"moe_k": 9}, "num_experts_per_tok"),
        ({"moe_num_experts": 0}, "num_experts"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"moe_layer_interval": 0}, "moe_layer_interval"),
        ({"use_bias": True}, "use_bias"),
        ({"moe_gate_act": "sigmoid"}, "moe_gate_act"),
    ],
)
def test_a_bad_mixture_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        ErnieMoeConfig.from_json({**MIXTURE, **damage})


def test_what_config_json_leaves_out_is_transformers_own() -> None:
    from transformers import Ernie4_5Config as Theirs

    given = {k: ERNIE[k] for k in ("vocab_size", "hidden_size", "intermediate_size")}
    fields: dict[str, Any] = {**given, "num_hidden_layers": 2, "num_attention_heads": 16}
    ours, theirs = ErnieConfig.from_json(fields), Theirs(**fields)
    for name in ("head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    rope: Any = theirs.rope_parameters
    assert ours.rope.rope_theta == rope["rope_theta"]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_bias": "yes"}, "use_bias"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        ErnieConfig.from_json({**ERNIE, **damage})
