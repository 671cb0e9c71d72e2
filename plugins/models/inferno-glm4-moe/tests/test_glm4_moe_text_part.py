"""The text part of GLM-4.5V."""

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
EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


class TestGlm45V(TextPartTests):
    computed_by = "Glm4MoeForCausalLM"
    config = {
        "model_type": "glm4v_moe",
        "text_config": {**TINY_TEXT, **EXPERTS, "rope_parameters": MROPE},
        "vision_config": {"out_hidden_size": 64},
        **IDS,
    }
