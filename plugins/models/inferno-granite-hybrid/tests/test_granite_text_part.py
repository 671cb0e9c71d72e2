"""The text parts of Granite 4 Vision and Granite Docling."""

from __future__ import annotations

from typing import Any

from inferno.testing import TINY_TEXT, TextPartTests

TEXT: dict[str, Any] = {
    **{name: value for name, value in TINY_TEXT.items() if name != "head_dim"},
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.25,
    "attention_multiplier": 0.1,
}


class TestGranite4Vision(TextPartTests):
    computed_by = "GraniteForCausalLM"
    config = {
        "model_type": "granite4_vision",
        "text_config": TEXT,
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 64},
        "image_token_id": 150,
        "downsample_rate": "1/2",
        "spatial_target_layers": [0, 1, 0, 1],
        "deepstack_layer_map": [[0, 1]],
    }


class TestGraniteDocling(TextPartTests):
    computed_by = "GraniteForCausalLM"
    config = {
        "model_type": "granite_docling",
        "text_config": TEXT,
        "vision_config": {"deepstack_visual_indexes": [0], "out_hidden_size": 64},
        "image_token_id": 150,
    }
