from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_granite_hybrid.config import GraniteConfig
from inferno_granite_hybrid.gguf import GRANITE as GRANITE_GGUF

GRANITE: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.0625,
    "bos_token_id": 1,
    "embedding_multiplier": 3.0,  # 12 there, and 0.22 below: tokens of toys would repeat
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "intermediate_size": 96,
    "logits_scaling": 3.0,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "residual_multiplier": 0.6,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10_000_000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that granite-3.3-2b-instruct's config.json has, and a pad_token_id of few tokens."""


class TestGranite(ArchitectureTests):
    """granite-3.3-2b-instruct: four multipliers, grouped queries, a tied head."""

    config = GRANITE


class TestGraniteOf8B(ArchitectureTests):
    """granite-3.3-8b-instruct: an untied head. Multipliers written as whole numbers, biases, one
    key/value head, heads wider than hidden size / heads."""

    config = {
        **GRANITE,
        "attention_bias": True,
        "attention_multiplier": 0.03125,
        "embedding_multiplier": 3,
        "head_dim": 32,
        "logits_scaling": 16,
        "mlp_bias": True,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
    }


class TestDefaults(ArchitectureTests):
    """Multipliers that are left out, each of which is then 1."""

    config = {
        **{
            name: value
            for name, value in GRANITE.items()
            if name not in ("embedding_multiplier", "residual_multiplier", "logits_scaling")
        },
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }


def test_scores_are_not_scaled_where_config_json_does_not_say() -> None:
    unsaid = {name: value for name, value in GRANITE.items() if name != "attention_multiplier"}
    assert GraniteConfig.from_json(unsaid).attention_spec(0).scale == 1.0
    assert GraniteConfig.from_json(GRANITE).attention_spec(0).scale == 0.0625


def test_a_gguf_file_may_say_that_heads_are_not_rotated() -> None:
    """As those of Granite-4.0-1B, whose name in them is Granite 3's."""
    assert GRANITE_GGUF.config is not None and GRANITE_GGUF.inverse is not None
    fields = {**GRANITE, "partial_rotary_factor": 8.0, "rotates": False}
    read = GraniteConfig.from_json(GRANITE_GGUF.config(fields))
    assert not read.rotates and GraniteConfig.from_json(GRANITE).rotates
    assert GRANITE_GGUF.inverse({"position_embedding_type": "nope"}) == {"rotates": False}
    assert GRANITE_GGUF.inverse(GRANITE) == {}


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"logits_scaling": "8"}, "logits_scaling"),
        ({"logits_scaling": 0.0}, "logits_scaling"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        GraniteConfig.from_json({**GRANITE, **damage})
