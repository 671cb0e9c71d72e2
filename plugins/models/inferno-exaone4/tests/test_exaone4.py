from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_exaone4.config import Exaone4Config
from inferno_exaone4.gguf import EXAONE4 as EXAONE4_GGUF

SMALL: dict[str, Any] = {
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": [FULL, FULL],
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "sliding_window_pattern": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that EXAONE-4.0-1.2B's config.json has."""
LARGE: dict[str, Any] = {
    **SMALL,
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
    "num_hidden_layers": 4,
    "sliding_window": 12,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
}


class TestExaoneOf1B(ArchitectureTests):
    """EXAONE-4.0-1.2B: full attention, rotated, in every layer; a tied head."""

    config = SMALL


class TestExaoneOf32B(ArchitectureTests):
    """EXAONE-4.0-32B: windows shorter than the prompt in three layers of four, no positions in the
    others."""

    config = LARGE


class TestListed(ArchitectureTests):
    """Of no checkpoint: layers in another order, one key/value head, wider heads, no stretch."""

    config = {
        **LARGE,
        "head_dim": 32,
        "layer_types": [FULL, SLIDING, FULL, SLIDING],
        "num_key_value_heads": 1,
        "rope_scaling": None,
    }
    gguf_fields = {"windows": [False, True, False, True]}


@pytest.mark.parametrize("pattern", ["LLLG", 4, "absent"])
def test_layers_by_a_pattern(pattern: Any) -> None:
    given = {k: v for k, v in LARGE.items() if k not in ("layer_types", "sliding_window_pattern")}
    more = {} if pattern == "absent" else {"sliding_window_pattern": pattern}
    read = Exaone4Config.from_json({**given, **more})
    assert read == Exaone4Config.from_json(LARGE)
    assert [read.rotates(layer) for layer in range(4)] == [True, True, True, False]
    none = Exaone4Config.from_json({**given, **more, "sliding_window": None})
    assert all(none.rotates(n) and none.attention_spec(n).sliding_window is None for n in range(4))


def test_layers_of_a_gguf_file() -> None:
    assert EXAONE4_GGUF.config is not None
    fields = {"num_hidden_layers": 4}
    assert EXAONE4_GGUF.config(fields)["layer_types"] == [FULL] * 4
    with_window = EXAONE4_GGUF.config({**fields, "sliding_window": 12})
    assert with_window["layer_types"] == LARGE["layer_types"]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": None, "sliding_window_pattern": "LXG"}, "sliding_window_pattern"),
        ({"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Exaone4Config.from_json({**LARGE, **damage})
