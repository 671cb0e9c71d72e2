from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_kimi_linear.config import KimiLinearConfig

KIMI: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "vocab_size": 160,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "mla_use_nope": True,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 16,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 32,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_experts": 12,
    "num_experts_per_token": 4,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "use_grouped_topk": True,
    "routed_scaling_factor": 2.446,
    "num_nextn_predict_layers": 0,
    "model_max_length": 256,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


IN_FILES: dict[str, Any] = {
    "max_position_embeddings": 256,
    "kv_heads": [0, 0, 0, 1],
    "key_length": 40,
    "value_length": 32,
    "key_length_mla": 24,
    "value_length_mla": 16,
    "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
"""As llama.cpp's converter writes them: the first two are of the cached vectors."""


class TestKimiLinear(ArchitectureTests):
    """Kimi-Linear-48B-A3B: three layers of Kimi delta attention, then one of latent attention."""

    rerouted = True
    config = KIMI
    gguf_kernels = False
    gguf_fields = IN_FILES
    # With all experts: which ones rounding picks would be most of the difference.
    trained = {"model_max_length": 1024, "num_experts_per_token": 12}


class TestKimiLinearOfAllExperts(ArchitectureTests):
    """Of no checkpoint: nothing is left to a router that rounding could turn."""

    config = {**KIMI, "num_experts_per_token": 12}
    gguf_fields = IN_FILES
    dtype_tolerance = {"float32": 1e-3, "bfloat16": 0.35}


def test_layers_are_counted_from_1_or_typed() -> None:
    read = KimiLinearConfig.from_json(KIMI)
    assert read.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert (read.first_k_dense_replace, read.max_position_embeddings) == (1, 256)
    written = {
        **{name: value for name, value in KIMI.items() if name != "first_k_dense_replace"},
        "linear_attn_config": {},
        "layer_types": list(read.layer_types),
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    }
    assert KimiLinearConfig.from_json(written) == read


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({"model_max_length": None}, "max_position_embeddings"),
        ({"num_experts_per_token": 13}, "num_experts_per_tok"),
        ({"linear_attn_config": 4}, "linear_attn_config"),
        ({"linear_attn_config": {"num_heads": 4, "head_dim": 16}}, "layer_types"),
        ({"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1]}}, "kda_layers"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        KimiLinearConfig.from_json({**KIMI, **damage})
