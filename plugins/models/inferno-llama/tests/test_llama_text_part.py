"""The text parts of SmolVLM and PaddleOCR-VL."""

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


class TestPaddleOCR(TextPartTests):
    """PaddleOCR-VL: ERNIE 4.5's fields."""

    computed_by = "PaddleOCRTextModel"
    config = {
        "model_type": "paddleocr_vl",
        "text_config": {
            **TINY_TEXT,
            "use_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [2, 3, 3],
                "rope_theta": 500_000.0,
            },
        },
        "vision_config": {},
        "image_token_id": 150,
        "video_token_id": 151,
        "vision_start_token_id": 152,
        "vision_end_token_id": 153,
    }
