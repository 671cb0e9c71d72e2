"""The text part of Mistral Small 3.1, Magistral and Devstral."""

from __future__ import annotations

from inferno.testing import TINY_TEXT, TextPartTests


class TestMistral3(TextPartTests):
    computed_by = "MistralForCausalLM"
    config = {
        "model_type": "mistral3",
        "text_config": {"model_type": "mistral", **TINY_TEXT},
        "vision_config": {"model_type": "pixtral"},
        "image_token_index": 150,
    }
