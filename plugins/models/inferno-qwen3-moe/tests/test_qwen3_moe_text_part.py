"""The text part of Qwen3-VL's mixtures."""

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
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


class TestQwen3VLMoe(TextPartTests):
    computed_by = "Qwen3MoeForCausalLM"
    config = {
        "model_type": "qwen3_vl_moe",
        "text_config": {**TINY_TEXT, **EXPERTS, "rope_parameters": MROPE},
        "vision_config": {"out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        **IDS,
    }
