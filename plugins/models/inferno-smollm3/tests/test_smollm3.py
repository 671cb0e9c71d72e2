from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_smollm3.config import SmolLM3Config

SMOLLM3: dict[str, Any] = {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_types": [FULL] * 5,
    "max_position_embeddings": 256,
    "max_window_layers": 28,
    "mlp_bias": False,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0, 1],
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 5_000_000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 160,
}
"""What SmolLM3-3B's config.json has; it leaves out that the head is tied."""


class TestSmolLM3(ArchitectureTests):
    """SmolLM3-3B: every fourth layer without positions, grouped queries, a tied head."""

    config = SMOLLM3


class TestYarn(ArchitectureTests):
    """SmolLM3-3B with the YaRN of its model card; which layers are rotated is left out."""

    config = {
        **{k: v for k, v in SMOLLM3.items() if k not in ("no_rope_layers", "layer_types")},
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 64,
        },
    }


class TestListed(ArchitectureTests):
    """Of no checkpoint: other layers without positions, which then have a window; biases, wider
    heads, an untied head."""

    in_gguf = False  # files say neither
    config = {
        **{k: v for k, v in SMOLLM3.items() if k != "layer_types"},
        "no_rope_layers": [0, 1, 1],
        "num_hidden_layers": 3,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 32,
        "use_sliding_window": True,
        "sliding_window": 12,
        "tie_word_embeddings": False,
    }


def test_layers_without_positions_have_the_window() -> None:
    read = SmolLM3Config.from_json(TestListed.config)
    assert read.layer_types == (SLIDING, FULL, FULL)
    assert [read.attention_spec(layer).sliding_window for layer in range(3)] == [12, None, None]
    unused = SmolLM3Config.from_json({**TestListed.config, "use_sliding_window": False})
    assert unused.layer_types == (FULL, FULL, FULL)


def test_what_config_json_leaves_out_is_transformers_own() -> None:
    from transformers import SmolLM3Config as Theirs

    given: dict[str, Any] = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96}
    fields = {**given, "num_hidden_layers": 6, "num_attention_heads": 4}
    ours, theirs = SmolLM3Config.from_json(fields), Theirs(**fields)
    assert list(ours.no_rope_layers) == theirs.no_rope_layers == [1, 1, 1, 0, 1, 1]
    rope: Any = theirs.rope_parameters
    assert ours.rope.rope_theta == rope["rope_theta"]
    for name in ("num_key_value_heads", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"no_rope_layers": [1, 1, 1, 2, 1]}, "no_rope_layers"),
        ({"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        SmolLM3Config.from_json({**SMOLLM3, **damage})
