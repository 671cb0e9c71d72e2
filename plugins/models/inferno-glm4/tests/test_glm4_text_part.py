"""The text part of GLM-4.1V."""

from __future__ import annotations

from inferno.testing import TINY_TEXT, TextPartTests

IDS = {
    "image_token_id": 150,
    "video_token_id": 151,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
}
MROPE = {
    "rope_type": "default",
    "mrope_section": [1, 1, 2],
    "partial_rotary_factor": 0.5,
    "rope_theta": 10_000.0,
}
"""A part of each head turns by an image's rows, another by its columns."""


class TestGlm4V(TextPartTests):
    computed_by = "Glm4ForCausalLM"
    config = {
        "model_type": "glm4v",
        "text_config": {**TINY_TEXT, "rope_parameters": MROPE},
        "vision_config": {"out_hidden_size": 64},
        **IDS,
    }
