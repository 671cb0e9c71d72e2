"""The text part of HunyuanOCR."""

from __future__ import annotations

from inferno.testing import TINY_TEXT, TextPartTests


class TestHunyuanOCR(TextPartTests):
    """HunyuanOCR: a part of each head turns by an image's rows, another by its columns."""

    computed_by = "HunYuanVLTextModel"
    config = {
        "model_type": "hunyuan_vl",
        "text_config": {
            **TINY_TEXT,
            "rope_scaling": {
                "type": "xdrope",
                "alpha": 100.0,
                "factor": 1.0,
                "xdrope_section": [2, 2, 2, 2],
            },
        },
        "vision_config": {"text_hidden_size": 64},
        "image_token_id": 150,
    }
