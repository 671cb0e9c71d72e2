from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_olmo.config import Olmo2Config, Olmo3Config, OlmoeConfig
from inferno_olmo.gguf import OLMO

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
OLMO_2: dict[str, Any] = {
    **SIZES,
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "rope_theta": 500_000,
    "rope_scaling": None,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1.138629436111989,
}
OLMO_3: dict[str, Any] = {
    **SIZES,
    "architectures": ["Olmo3ForCausalLM"],
    "model_type": "olmo3",
    "num_hidden_layers": 4,
    "rope_theta": 500_000,
    "rope_scaling": YARN,
    "sliding_window": 12,
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
}
OLMOE: dict[str, Any] = {
    **SIZES,
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "clip_qkv": None,
    "intermediate_size": 32,
    "norm_topk_prob": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "rope_theta": 10_000.0,
}


class TestOlmo2(ArchitectureTests):
    """OLMo-2-0425-1B and 1124-7B: a key/value head for each query head."""

    config = {**OLMO_2, "num_key_value_heads": 4}


class TestOlmo2Of32B(ArchitectureTests):
    """OLMo-2-0325-32B: grouped queries; heads wider than hidden size / heads."""

    config = {**OLMO_2, "num_key_value_heads": 2, "head_dim": 32}


class TestOlmo2Tied(ArchitectureTests):
    """Of no checkpoint: biases, a tied head, one key/value head, a linear stretch."""

    config = {
        **OLMO_2,
        "num_key_value_heads": 1,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }


class TestOlmo3(ArchitectureTests):
    """Olmo-3-7B: windows in three layers of four, shorter than the prompt; YaRN in the others."""

    config = {**OLMO_3, "num_key_value_heads": 4}


class TestOlmo3Of32B(ArchitectureTests):
    """Olmo-3-32B as transformers 5 writes it: grouped queries, rotary parameters for each kind of
    layer, another base in each; layers in another order, a tied head."""

    in_gguf = False  # files have one rotary base
    config = {
        **{name: value for name, value in OLMO_3.items() if not name.startswith("rope_")},
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "layer_types": [FULL, SLIDING, FULL, SLIDING],
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 20_000.0},
            FULL: {**YARN, "rope_theta": 100_000.0},
        },
    }


class TestOlmoe(ArchitectureTests):
    """OLMoE-1B-7B: experts in every layer, whose weights are not normalized."""

    rerouted = True
    config = {**OLMOE, "num_key_value_heads": 4}


class TestOlmoeNormalized(ArchitectureTests):
    """Of no checkpoint: weights that sum to 1, grouped queries, biases, a tied head."""

    in_gguf = False  # llama.cpp's olmoe never normalizes
    rerouted = True
    config = {
        **OLMOE,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    }


def test_what_olmo_3_has_where_config_json_says_nothing() -> None:
    given = {k: v for k, v in OLMO_3.items() if k not in ("layer_types", "sliding_window")}
    read = Olmo3Config.from_json({k: v for k, v in given.items() if not k.startswith("rope_")})
    assert read.layer_types == (SLIDING, SLIDING, SLIDING, FULL)
    assert [read.attention_spec(i).sliding_window for i in (2, 3)] == [4096, None]
    assert (read.rope.rope_theta, read.local_rope.rope_theta) == (500_000, 500_000)
    none = Olmo3Config.from_json({**given, "sliding_window": None})
    assert none.attention_spec(0).sliding_window is None


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_the_base_of_a_whole_config_is_read_as_by_transformers(theta: float) -> None:
    from transformers import Olmo3Config as Theirs

    fields: dict[str, Any] = {**OLMO_3, "rope_theta": theta, "rope_scaling": {**YARN}}
    rope: Any = Theirs(**fields).rope_parameters
    ours = Olmo3Config.from_json(fields)
    assert ours.rope.rope_theta == rope[FULL]["rope_theta"]
    assert ours.local_rope.rope_theta == rope[SLIDING]["rope_theta"]


def test_a_gguf_file_with_a_window_is_olmo_3_with_one_base() -> None:
    """Files may say which layers have it; else it is all but every fourth, as in llama.cpp."""
    assert OLMO.config is not None
    fields = {"num_hidden_layers": 4, "rope_theta": 1e4, "rope_scaling": YARN}
    assert OLMO.config(fields) == {**fields, "model_type": "olmo2"}
    for windows, types in (
        (None, [SLIDING, SLIDING, SLIDING, FULL]),
        ([False, True, False, True], [FULL, SLIDING, FULL, SLIDING]),
        (True, [SLIDING] * 4),
    ):
        read = OLMO.config({**fields, "sliding_window": 12, "windows": windows})
        assert read["architectures"] == ["Olmo3ForCausalLM"]
        assert read["layer_types"] == types
        full, sliding = (read["rope_parameters"][kind] for kind in (FULL, SLIDING))
        assert full == {**YARN, "rope_theta": 1e4}
        assert sliding == {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("read", "damage", "named"),
    [
        (Olmo2Config.from_json, {**OLMO_2, "hidden_size": None}, "hidden_size"),
        (Olmo2Config.from_json, {**OLMO_2, "num_attention_heads": 3}, "num_attention_heads"),
        (Olmo2Config.from_json, {**OLMO_2, "hidden_act": "gelu"}, "hidden_act"),
        (Olmo2Config.from_json, {**OLMO_2, "attention_bias": "yes"}, "attention_bias"),
        (Olmo3Config.from_json, {**OLMO_3, "layer_types": [FULL]}, "layer_types"),
        (Olmo3Config.from_json, {**OLMO_3, "sliding_window": 0}, "sliding_window"),
        (Olmo3Config.from_json, {**OLMO_3, "rope_scaling": {"type": "spiral"}}, "spiral"),
        (OlmoeConfig.from_json, {**OLMOE, "clip_qkv": 8.0}, "clip_qkv"),
        (OlmoeConfig.from_json, {**OLMOE, "num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    read: Any, damage: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(damage)
