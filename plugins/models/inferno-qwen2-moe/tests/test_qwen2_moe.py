from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_qwen2_moe.config import Qwen2MoeConfig
from inferno_qwen2_moe.gguf import QWEN2_MOE

TINY: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "max_window_layers": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts": 6,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 128,
    "sliding_window": 32_768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 160,
}
"""Every field that Qwen1.5-MoE-A2.7B's config.json has."""


class TestQwen15Moe(ArchitectureTests):
    """Qwen1.5-MoE-A2.7B: as many key/value as query heads, the shared expert as wide as the picked
    ones together."""

    rerouted = True
    config = TINY


class TestQwen2Moe(ArchitectureTests):
    """Qwen2-57B-A14B: grouped queries, a width of its own for the shared expert, YaRN; an odd
    number of experts."""

    rerouted = True
    config = {
        **TINY,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 96,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    }


class TestDenseLayers(ArchitectureTests):
    """A tied head, no biases, layers without experts by both fields, and weights made to sum to
    1."""

    in_gguf = False  # llama.cpp's qwen2moe has experts in every layer, and does not normalize
    rerouted = True
    config = {
        **TINY,
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "qkv_bias": False,
    }


def test_widths_where_gguf_files_do_not_say() -> None:
    """As llama.cpp reads its first files, which were Qwen1.5-MoE-A2.7B's."""
    assert QWEN2_MOE.config is not None
    assert QWEN2_MOE.config({"intermediate_size": 128, "num_experts_per_tok": 4}) == {
        "intermediate_size": 128,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 128,
    }
    assert QWEN2_MOE.config(TINY) == TINY


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Qwen2MoeConfig.from_json({**TINY, **damage})
