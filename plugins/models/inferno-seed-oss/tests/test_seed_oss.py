from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_seed_oss.config import SeedOssConfig

SEED_OSS: dict[str, Any] = {
    "architectures": ["SeedOssForCausalLM"],
    "model_type": "seed_oss",
    "attention_bias": True,
    "attention_dropout": 0.1,
    "attention_out_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "head_dim": 32,  # more than hidden_size / heads, as there
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 1,
    "residual_dropout": 0.1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"rope_type": "default"},
    "rope_theta": 10_000_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that Seed-OSS-36B-Instruct's config.json has."""


class TestSeedOss(ArchitectureTests):
    """Seed-OSS-36B: biases on queries, keys and values, grouped queries."""

    config = SEED_OSS


class TestBiases(ArchitectureTests):
    """Of no checkpoint: every bias, one key/value head, heads of hidden size / heads, a tied head,
    YaRN."""

    config = {
        **SEED_OSS,
        "attention_out_bias": True,
        "head_dim": None,
        "mlp_bias": True,
        "num_key_value_heads": 1,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "tie_word_embeddings": True,
    }


def test_what_config_json_leaves_out_is_transformers_own() -> None:
    from transformers import SeedOssConfig as Theirs

    given = {k: SEED_OSS[k] for k in ("vocab_size", "hidden_size", "intermediate_size")}
    fields: dict[str, Any] = {**given, "num_hidden_layers": 2, "num_attention_heads": 16}
    ours, theirs = SeedOssConfig.from_json(fields), Theirs(**fields)
    for name in ("head_dim", "num_key_value_heads", "max_position_embeddings", "attention_bias"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"head_dim": 0}, "head_dim"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        SeedOssConfig.from_json({**SEED_OSS, **damage})
