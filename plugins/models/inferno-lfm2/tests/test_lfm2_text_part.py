"""The text part of LFM2-VL."""

from __future__ import annotations

from inferno.testing import TextPartTests


class TestLfm2VL(TextPartTests):
    computed_by = "Lfm2ForCausalLM"
    config = {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "model_type": "lfm2_vl",
        "image_token_id": 150,
        "projector_hidden_size": 64,
        "text_config": {
            "model_type": "lfm2",
            "bos_token_id": 1,
            "conv_L_cache": 3,
            "eos_token_id": 2,
            "full_attn_idxs": [1],
            "hidden_size": 64,
            "intermediate_size": 144,
            "block_multiple_of": 32,
            "max_position_embeddings": 256,
            "norm_eps": 1e-05,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "pad_token_id": 0,
            "vocab_size": 160,
        },
        "vision_config": {"model_type": "siglip2_vision_model"},
    }
