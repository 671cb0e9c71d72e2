"""The text part of Qwen2-VL, Qwen2.5-VL and InternVL."""

from __future__ import annotations

from typing import Any

from inferno.testing import TextPartTests

TINY: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IDS = {
    "image_token_id": 150,
    "video_token_id": 151,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
}
MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
"""A part of each head turns by an image's rows, another by its columns."""


class TestQwen25VL(TextPartTests):
    computed_by = "Qwen2ForCausalLM"
    config = {
        "model_type": "qwen2_5_vl",
        "text_config": {**TINY, "rope_parameters": MROPE},
        "vision_config": {"out_hidden_size": 64, "fullatt_block_indexes": [0]},
        **IDS,
    }


class TestInternVL(TextPartTests):
    computed_by = "Qwen2ForCausalLM"
    config = {
        "model_type": "internvl",
        "text_config": {"model_type": "qwen2", **TINY},
        "vision_config": {"image_size": [32, 32], "patch_size": [16, 16]},
        "image_token_id": 150,
    }
