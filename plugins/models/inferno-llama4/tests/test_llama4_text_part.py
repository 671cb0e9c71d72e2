"""The text part of Llama 4."""

from __future__ import annotations

from inferno.testing import TINY_TEXT, TextPartTests


class TestLlama4(TextPartTests):
    computed_by = "Llama4ForCausalLM"
    config = {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            **TINY_TEXT,
            "attention_chunk_size": 16,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "pad_token_id": 0,
        },
        "vision_config": {},
        "image_token_index": 150,
    }
