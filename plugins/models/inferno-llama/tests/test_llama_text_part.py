"""The text part of SmolVLM."""

from __future__ import annotations

from typing import Any

from inferno.testing import TextPartTests

TINY: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class TestSmolVLM(TextPartTests):
    computed_by = "LlamaForCausalLM"
    config = {
        "model_type": "smolvlm",
        "text_config": {"model_type": "llama", **TINY},
        "vision_config": {},
        "image_token_id": 150,
    }
