"""Configs of published models, as far as their tensors depend on them: for benchmarks with random
weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMMON: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40_960,
}

SIZES: Mapping[str, Mapping[str, Any]] = {
    "0.6B": {
        **_COMMON,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "8B": {
        **_COMMON,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
"""https://huggingface.co/Qwen/Qwen3-0.6B and Qwen3-8B, config.json."""
