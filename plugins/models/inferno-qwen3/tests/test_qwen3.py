from __future__ import annotations

from typing import Any

from inferno.testing import ArchitectureTests

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # more than hidden_size / heads, as in Qwen3-0.6B
    "max_position_embeddings": 256,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


class TestQwen3(ArchitectureTests):
    config = TINY


class TestTied(ArchitectureTests):
    config = {**TINY, "tie_word_embeddings": True}


class TestYarn(ArchitectureTests):
    """As Qwen3's model cards tell one to write it for contexts of 131 072 tokens."""

    config = {
        **TINY,
        "attention_bias": True,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    }


class TestSlidingWindow(ArchitectureTests):
    config = {**TINY, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
