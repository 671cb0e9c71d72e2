from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_minimax.config import MiniMaxM2Config

M2: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "attn_type_list": [1, 1],
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "intermediate_size": 32,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "mtp_transformer_layers": 1,
    "num_local_experts": 8,
    "num_mtp_modules": 3,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5_000_000.0,
    "rotary_dim": 16,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 160,
}
"""Fields of MiniMax-M2's config.json."""


class TestM2(ArchitectureTests):
    """MiniMax-M2: half of each head rotated, norms over all heads, experts in every layer."""

    config = M2
    rerouted = True


class TestWhole(ArchitectureTests):
    """Of no checkpoint: heads rotated whole, one key/value head, a tied head."""

    config = {**M2, "num_key_value_heads": 1, "rotary_dim": 32, "tie_word_embeddings": True}
    rerouted = True


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_local_experts": None}, "num_local_experts"),
        ({"qk_norm_type": "per_head"}, "qk_norm_type"),
        ({"use_qk_norm": False}, "use_qk_norm"),
        ({"rotary_dim": 0}, "rotary_dim"),
        ({"rotary_dim": 64}, "rotary|partial"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"shared_intermediate_size": 64}, "shared_intermediate_size"),
        ({"use_routing_bias": False}, "use_routing_bias"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        MiniMaxM2Config.from_json({**M2, **damage})
