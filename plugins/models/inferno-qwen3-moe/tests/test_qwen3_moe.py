from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_qwen3_moe.config import Qwen3MoeConfig
from inferno_qwen3_moe.gguf import QWEN3_MOE

TINY: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_sparse_step": 1,
    "head_dim": 32,  # more than hidden_size / heads, as in all of them
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "max_window_layers": 2,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1_000_000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 160,
}
"""Every field that Qwen3-30B-A3B's config.json has."""


class TestQwen3Moe(ArchitectureTests):
    """Qwen3-30B-A3B: weights of the picked experts made to sum to 1."""

    rerouted = True
    config = TINY


class TestYarn(ArchitectureTests):
    """Qwen3-235B-A22B and Qwen3-Coder-480B-A35B with the YaRN of their model cards; an odd number
    of experts."""

    rerouted = True
    config = {
        **TINY,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 1,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }


class TestDenseLayers(ArchitectureTests):
    """A tied head, biases, layers without experts by both fields, and weights that do not sum to 1
    (transformers' default)."""

    in_gguf = False  # llama.cpp's qwen3moe has experts in every layer, and normalizes
    rerouted = True
    config = {
        **TINY,
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
        "attention_bias": True,
    }


class TestSlidingWindow(ArchitectureTests):
    """A window, which every layer has then, shorter than the prompt."""

    in_gguf = False  # llama.cpp's qwen3moe has no windows
    rerouted = True
    config = {**TINY, "use_sliding_window": True, "sliding_window": 12}


def test_which_layers_have_experts() -> None:
    config = Qwen3MoeConfig.from_json(TestDenseLayers.config)
    assert [config.has_experts(layer) for layer in range(4)] == [False, False, False, True]


def test_width_of_experts_where_gguf_files_do_not_say() -> None:
    """As llama.cpp reads its first files."""
    unsaid = {name: value for name, value in TINY.items() if name != "moe_intermediate_size"}
    assert QWEN3_MOE.config is not None
    assert QWEN3_MOE.config(unsaid) == {**unsaid, "moe_intermediate_size": 48}
    assert QWEN3_MOE.config(TINY) == TINY


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Qwen3MoeConfig.from_json({**TINY, **damage})
