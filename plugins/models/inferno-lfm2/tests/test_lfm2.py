from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import CONV, FULL
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_lfm2.config import Lfm2Config, Lfm2MoeConfig

LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": True,
    "block_dim": 64,
    "block_ff_dim": 144,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 32,
    "block_norm_eps": 1e-05,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 64,
    "conv_dim_out": 64,
    "conv_use_xavier_init": True,
    "eos_token_id": 7,
    "full_attn_idxs": [2],
    "hidden_size": 64,
    "initializer_range": 0.1,
    "max_position_embeddings": 256,
    "norm_eps": 1e-05,
    "num_attention_heads": 4,
    "num_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_theta": 1_000_000.0,
    "tie_embedding": True,
    "use_cache": True,
    "use_pos_enc": True,
    "vocab_size": 160,
}
"""Every field that LFM2-1.2B's config.json has."""
MOE: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "eos_token_id": 7,
    "hidden_size": 64,
    "initializer_range": 0.1,
    "intermediate_size": 96,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_dense_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_theta": 1_000_000.0,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_expert_bias": True,
    "vocab_size": 160,
}


class TestLfm2(ArchitectureTests):
    """LFM2-350M to 2.6B: short convolutions, a layer of attention, a tied head."""

    config = LFM2
    # A convolution's output is a product of three projections, each with the error of rounding.
    dtype_tolerance = {"float32": 1e-3, "bfloat16": 0.25}
    # llama.cpp's converter stores the width that the layers have.
    gguf_fields = {"num_key_value_heads": [0, 0, 2, 0], "intermediate_size": 96}


class TestBiases(ArchitectureTests):
    """Of no checkpoint: biases, four taps, the inner width as it is, an untied head."""

    config = {
        **LFM2,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 96,
        "conv_L_cache": 4,
        "conv_bias": True,
        "full_attn_idxs": [1, 2],
        "tie_embedding": False,
    }
    gguf_fields = {"num_key_value_heads": [0, 2, 2, 0], "intermediate_size": 96}


class TestMixture(ArchitectureTests):
    """LFM2-8B-A1B: routed experts after two layers, chosen by scores with a bias."""

    config = MOE
    rerouted = True
    gguf_fields = {"num_key_value_heads": [0, 0, 2, 0]}


class TestUnbiased(ArchitectureTests):
    """Of no checkpoint: no bias of the routers, weights as they come, scaled."""

    config = {
        **MOE,
        "norm_topk_prob": False,
        "num_dense_layers": 0,
        "routed_scaling_factor": 2.0,
        "use_expert_bias": False,
    }
    rerouted = True
    in_gguf = False


def test_layers_are_numbered_or_typed() -> None:
    read = Lfm2Config.from_json(LFM2)
    assert read.layer_types == (CONV, CONV, FULL, CONV)
    typed = {**LFM2, "full_attn_idxs": None, "layer_types": list(read.layer_types)}
    assert Lfm2Config.from_json(typed) == read
    assert Lfm2Config.from_json({**LFM2, "full_attn_idxs": None}).layer_types == (FULL,) * 4


@pytest.mark.parametrize(
    ("said", "width"),
    [
        ({}, 96),
        ({"block_multiple_of": 100}, 100),
        ({"block_ffn_dim_multiplier": 1.5}, 160),
        ({"block_ffn_dim_multiplier": None}, 96),
        ({"block_auto_adjust_ff_dim": False}, 144),
        ({"block_ff_dim": 12288, "block_multiple_of": 256}, 8192),
    ],
)
def test_the_inner_width_follows_from_what_the_config_says(
    said: dict[str, Any], width: int
) -> None:
    assert Lfm2Config.from_json({**LFM2, **said}).intermediate_size == width


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"block_ff_dim": "wide"}, "intermediate_size"),
        ({"block_ff_dim": 1}, "intermediate_size"),
        ({"block_multiple_of": 0}, "block_multiple_of"),
        ({"block_ffn_dim_multiplier": "much"}, "block_ffn_dim_multiplier"),
        ({"conv_L_cache": 0}, "conv_L_cache"),
        ({"full_attn_idxs": [4]}, "full_attn_idxs"),
        ({"full_attn_idxs": "all"}, "full_attn_idxs"),
        ({"layer_types": ["conv"]}, "layer_types"),
        ({"layer_types": ["conv"] * 3 + ["mamba"]}, "layer_types"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Lfm2Config.from_json({**LFM2, **damage})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"num_experts": None}, "num_experts"),
    ],
)
def test_bad_experts_are_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Lfm2MoeConfig.from_json({**MOE, **damage})
