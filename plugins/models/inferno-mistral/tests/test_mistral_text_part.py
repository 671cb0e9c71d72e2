"""The text parts of Mistral Small 3.1, Magistral and Devstral, and of Ministral 3."""

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


class TestMinistral3(TextPartTests):
    computed_by = "Ministral3ForCausalLM"
    config = {
        "model_type": "mistral3",
        "text_config": {"model_type": "ministral3", **TINY_TEXT, "head_dim": 16},
        "vision_config": {"model_type": "pixtral"},
        "image_token_index": 150,
    }
