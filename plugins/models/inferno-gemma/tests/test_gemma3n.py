from __future__ import annotations

import math
from typing import Any

import pytest

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_gemma.config3n import Gemma3nConfig

TEXT: dict[str, Any] = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": [96, 96, 64, 96, 96, 96],
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 12,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_kv_shared_layers": 2,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 160,  # of GGUF files: as many as tokens
    "altup_num_inputs": 3,
    "laurel_rank": 64,
    "activation_sparsity_pattern": [0.6, 0.6, 0.0, 0.0, 0.0, 0.0],
}
NONE = float("-inf")


class TestGemma3n(ArchitectureTests):
    """Gemma 3n: several states per token, sparse gates, inputs per layer, shared keys and
    values."""

    config = TEXT
    gguf_fields = {
        "inner_sizes": TEXT["intermediate_size"],
        "sliding_window_pattern": [True, False] * 3,
        "rope_local_base_freq": 1e4,
        "altup_active_idx": 0,
        "activation_sparsity_scale": [0.2533471, 0.2533471, NONE, NONE, NONE, NONE],
    }
    rerouted = True  # scores are not scaled: of random weights, rounding moves them far


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"hidden_activation": "relu"}, "hidden_activation"),
        ({"intermediate_size": [96, 96]}, "intermediate_size has 2"),
        ({"intermediate_size": [96] * 5 + [0]}, r"intermediate_size\[5\]"),
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern has 1"),
        ({"activation_sparsity_pattern": [1.5] * 6}, "activation_sparsity_pattern"),
        ({"altup_active_idx": 3}, "altup_active_idx"),
        ({"altup_num_inputs": 1}, "altup_num_inputs"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Gemma3nConfig.from_json({**TEXT, **damage})


def test_fields_that_configs_leave_out_are_those_of_transformers() -> None:
    from transformers import Gemma3nTextConfig

    ours, theirs = Gemma3nConfig.from_json({}), Gemma3nTextConfig()
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "sliding_window",
        "num_kv_shared_layers",
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "final_logit_softcapping",
        "altup_num_inputs",
        "altup_active_idx",
        "altup_correct_scale",
        "laurel_rank",
        "tie_word_embeddings",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert list(ours.layer_types) == theirs.layer_types
    assert list(ours.inner_sizes) == theirs.intermediate_size
    assert list(ours.activation_sparsity_pattern) == theirs.activation_sparsity_pattern
    assert math.isclose(ours.activation_sparsity_scale[0], 1.6448536, rel_tol=1e-6)
    rope: Any = theirs.rope_parameters
    assert ours.rope.rope_theta == rope[FULL]["rope_theta"]
    assert ours.local_rope.rope_theta == rope[SLIDING]["rope_theta"]
