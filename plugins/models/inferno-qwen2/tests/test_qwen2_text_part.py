"""The text part of Qwen2-VL and InternVL, whose images are not seen."""

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


class TestQwen2VL(TextPartTests):
    computed_by = "Qwen2ForCausalLM"
    config = {
        "model_type": "qwen2_vl",
        "text_config": {**TINY_TEXT, "rope_parameters": MROPE},
        "vision_config": {"hidden_size": 64, "embed_dim": 32},
        **IDS,
    }


class TestInternVL(TextPartTests):
    computed_by = "Qwen2ForCausalLM"
    config = {
        "model_type": "internvl",
        "text_config": {"model_type": "qwen2", **TINY_TEXT},
        "vision_config": {"image_size": [32, 32], "patch_size": [16, 16]},
        "image_token_id": 150,
    }
