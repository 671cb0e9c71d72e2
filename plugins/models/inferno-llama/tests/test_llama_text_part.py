"""The text part of SmolVLM."""

from __future__ import annotations

from inferno.testing import TINY_TEXT, TextPartTests


class TestSmolVLM(TextPartTests):
    computed_by = "LlamaForCausalLM"
    config = {
        "model_type": "smolvlm",
        "text_config": {"model_type": "llama", **TINY_TEXT},
        "vision_config": {},
        "image_token_id": 150,
    }
