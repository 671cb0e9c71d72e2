"""The text parts of GLM-4.1V and GLM-OCR."""

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


class TestGlmOcr(TextPartTests):
    """GLM-OCR: whole heads turn, and nothing has a bias."""

    computed_by = "GlmOcrTextModel"
    config = {
        "model_type": "glm_ocr",
        "text_config": {
            **TINY_TEXT,
            "rope_parameters": {
                **MROPE,
                "mrope_section": [2, 3, 3],
                "partial_rotary_factor": 1.0,
            },
        },
        "vision_config": {"out_hidden_size": 64},
        **IDS,
        "image_start_token_id": 152,
        "image_end_token_id": 153,
    }
