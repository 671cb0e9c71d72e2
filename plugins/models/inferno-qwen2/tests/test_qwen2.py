from __future__ import annotations

from typing import Any

import pytest

from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_qwen2.config import Qwen2Config

TINY: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "max_window_layers": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "sliding_window": 16,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 160,
}
"""Every field that Qwen2.5's config.json files have. A `sliding_window` stands there and is
switched off."""


class Qwen2Tests(ArchitectureTests):
    gguf_unsaid = frozenset({"max_window_layers"})


class TestTied(Qwen2Tests):
    """Qwen2.5-0.5B-Instruct to 3B, Qwen2-1.5B: a tied head."""

    config = TINY


class TestDistill(Qwen2Tests):
    """DeepSeek-R1-Distill-Qwen-7B: a head of its own, base 10 000, few key/value heads."""

    config = {
        **TINY,
        "tie_word_embeddings": False,
        "rope_theta": 10_000.0,
        "num_key_value_heads": 1,
        "use_mrope": False,
    }


class TestQwQ(Qwen2Tests):
    """QwQ-32B and Qwen2.5-7B-Instruct, with the YaRN that their model cards tell for long
    contexts."""

    config = {
        **TINY,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"},
    }


class TestSlidingWindow(ArchitectureTests):
    """A Qwen1.5-7B with `use_sliding_window` on: a window in the upper layers, as many key/value as
    query heads."""

    in_gguf = False  # llama.cpp's qwen2 has no windows
    config = {
        **TINY,
        "tie_word_embeddings": False,
        "num_key_value_heads": 4,
        "use_sliding_window": True,
        "sliding_window": 12,
        "max_window_layers": 1,
    }


def windows(config: dict[str, Any]) -> list[int | None]:
    """Of all layers."""
    specs = Qwen2Config.from_json(config).cache_specs()
    return [spec.sliding_window for spec in specs if isinstance(spec, AttentionSpec)]


def test_layer_types_say_which_layers_have_a_window() -> None:
    windowed = {
        **TINY,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    assert windows(windowed) == [16, None]
    switched_off = {**windowed, "use_sliding_window": False}
    assert windows(switched_off) == [None, None]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Qwen2Config.from_json({**TINY, **damage})
