"""The text part of Qwen3-VL."""

from __future__ import annotations

from inferno.testing import TINY_TEXT, TextPartTests

IDS = {
    "image_token_id": 150,
    "video_token_id": 151,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
}
MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
"""A part of each head turns by an image's rows, another by its columns."""


class TestQwen3VL(TextPartTests):
    computed_by = "Qwen3ForCausalLM"
    config = {
        "model_type": "qwen3_vl",
        "text_config": {**TINY_TEXT, "rope_parameters": MROPE},
        "vision_config": {"out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        **IDS,
    }
