from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

from inferno.configs import FULL
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests, MTPTests
from inferno_qwen3_next.checkpoint import predicting
from inferno_qwen3_next.config import LINEAR, Qwen3NextConfig, qwen3_5, qwen3_5_moe

TINY: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "full_attention_interval": 4,
    "head_dim": 32,  # more than hidden_size / heads, as in all of them
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,  # of few numbers heads are often near 0, and normed: much noise
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 256,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10_000_000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that Qwen3-Next-80B-A3B's config.json has."""

TEXT: dict[str, Any] = {
    "attention_bias": False,
    "full_attention_interval": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 48,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000,
        "rope_type": "default",
    },
    "vocab_size": 160,
}


class TestQwen3Next(ArchitectureTests):
    """Qwen3-Next-80B-A3B: three linear layers, one of attention; experts in every layer."""

    rerouted = True
    gguf_kernels = False  # rounding sends prompts to other experts
    gguf_fields = {"inner_size": 256}
    gguf_unsaid = frozenset({"num_nextn_predict_layers"})
    config = TINY
    trained = {"num_experts_per_tok": 8}  # all: a token that goes to others is another model


class TestDenseLayers(ArchitectureTests):
    """Layers without experts by both fields, a tied head, biases, other widths and a longer
    convolution, attention first."""

    rerouted = True
    in_gguf = False  # files say of no layer that it has no experts
    config = {
        **TINY,
        "attention_bias": True,
        "decoder_sparse_step": 2,
        "layer_types": [FULL, LINEAR, LINEAR, FULL],
        "linear_conv_kernel_dim": 6,
        "linear_num_key_heads": 4,
        "linear_value_head_dim": 80,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    }


class TestQwen35(ArchitectureTests):
    """Qwen3.5-27B's language model: no experts, matrices of their own for a linear layer's
    inputs."""

    rerouted = True  # a head near 0 is normed: rounding turns some around, in the reference too
    in_gguf = False  # inferno reads such files, and writes none
    config = {
        **TEXT,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "intermediate_size": 96,
        "tie_word_embeddings": False,
    }


class TestQwen35Moe(ArchitectureTests):
    """Qwen3.5-35B-A3B's language model."""

    rerouted = True
    in_gguf = False  # inferno reads such files, and writes none
    config = {
        **TEXT,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "shared_expert_intermediate_size": 48,
        "tie_word_embeddings": False,
    }


def test_which_layers_are_linear_where_files_do_not_say() -> None:
    config = Qwen3NextConfig.from_json({**TINY, "num_hidden_layers": 8})
    assert config.layer_types == (LINEAR, LINEAR, LINEAR, FULL) * 2


def test_the_language_model_of_one_that_sees() -> None:
    """Of its own fields the tied head counts, as published."""
    text = {**TEXT, "intermediate_size": 96, "tie_word_embeddings": False}
    whole = {"text_config": text, "vision_config": {}, "tie_word_embeddings": True}
    assert qwen3_5(whole) == qwen3_5({**text, "tie_word_embeddings": True})
    assert qwen3_5_moe({"text_config": TEXT}).num_experts == 256


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": ["mamba"] * 4}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Qwen3NextConfig.from_json({**TINY, **damage})


NAMES = {
    "enorm.weight": "pre_fc_norm_embedding.weight",
    "hnorm.weight": "pre_fc_norm_hidden.weight",
    "eh_proj.weight": "fc.weight",
    "shared_head.norm.weight": "norm.weight",
}
OWN = 3
"""Layers before that of multi-token prediction."""


class TestMTP(MTPTests):
    """Qwen3-Next: experts in every layer, states in two of three."""

    config = {
        **TINY,
        "full_attention_interval": 2,
        "num_hidden_layers": OWN,
        "num_nextn_predict_layers": 1,
    }

    # Files store them as layers after the last one (below); inferno writes none.
    test_a_gguf_file_gives_the_same_drafts: Any = None
    test_a_converted_gguf_file_keeps_the_layers_that_it_can_name: Any = None

    @classmethod
    def stored(cls, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Under `mtp`, without copies of the model's, and norms less the 1 that is added."""
        weights, inside = dict[str, Tensor](), f"model.layers.{OWN}."
        for name, tensor in tensors.items():
            if not name.startswith(inside):
                weights[name] = tensor
                continue
            suffix = name.removeprefix(inside)
            if suffix in NAMES:
                weights[f"mtp.{NAMES[suffix]}"] = tensor - 1 if "norm" in suffix else tensor
            elif suffix not in ("embed_tokens.weight", "shared_head.head.weight"):
                weights[f"mtp.layers.0.{suffix}"] = tensor
        return weights

    @classmethod
    def prefixes(cls) -> tuple[str, ...]:
        return ("mtp.",)


@pytest.mark.slow
class TestMTPOfQwen35(TestMTP):
    """Qwen3.5: no experts, and another name for the number of layers."""

    config = {
        **{name: value for name, value in TEXT.items() if name != "layer_types"},
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "full_attention_interval": 2,
        "intermediate_size": 96,
        "mtp_num_hidden_layers": 1,
        "num_hidden_layers": OWN,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }


def test_layers_of_multi_token_prediction_follow_the_others_in_gguf_files() -> None:
    named = {
        "model.layers.1.input_layernorm.weight": "model.layers.1.input_layernorm.weight",
        "model.layers.2.input_layernorm.weight": "mtp.layers.0.input_layernorm.weight",
        "model.layers.3.self_attn.q_proj.q8_0": "mtp.layers.1.self_attn.q_proj.q8_0",
        "model.layers.2.fc.weight": "mtp.fc.weight",
        "model.layers.2.norm.weight": "mtp.norm.weight",
        "model.layers.2.pre_fc_norm_hidden.weight": "mtp.pre_fc_norm_hidden.weight",
        "model.norm.weight": "model.norm.weight",
    }
    assert {name: predicting(name, 2) for name in named} == named
    assert predicting("model.layers.2.fc.weight", None) == "model.layers.2.fc.weight"


def test_how_many_layers_of_multi_token_prediction_there_are() -> None:
    assert Qwen3NextConfig.from_json(TINY).num_nextn_predict_layers == 1
    none = Qwen3NextConfig.from_json({**TINY, "mtp_num_hidden_layers": 0})
    assert none.num_nextn_predict_layers == 0 and none.mtp_specs() == []
