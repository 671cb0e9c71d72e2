from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_gemma.config4 import Gemma4Config

TEXT: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 12,
    "layer_types": [SLIDING, SLIDING, FULL],
    "hidden_activation": "gelu_pytorch_tanh",
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 160,
}
SMALL: dict[str, Any] = {
    **TEXT,
    "num_hidden_layers": 6,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 16,
    "use_double_wide_mlp": True,
}
LARGE: dict[str, Any] = {
    **TEXT,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "use_bidirectional_attention": "vision",
}
MIXTURE: dict[str, Any] = {
    **LARGE,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
ROPE: dict[str, Any] = {"rope_local_base_freq": 1e4, "rope_width": 32, "local_rope_width": 16}
FULL_LAST: dict[str, Any] = {
    "sliding_window_pattern": [True, True, False],
    "inner_sizes": 96,
    "kv_heads": [2, 2, 1],
    **ROPE,
}


class TestSmall(ArchitectureTests):
    """Gemma 4 E2B: inputs per layer, and the last layers read keys and values of others."""

    config = SMALL
    gguf_fields = {
        "inner_sizes": [96, 96, 96, 192, 192, 192],
        "kv_heads": 2,
        "sliding_window_pattern": [True, False] * 3,
        **ROPE,
    }
    rerouted = True  # scores are not scaled: of random weights, rounding moves them far


class TestLarge(ArchitectureTests):
    """Gemma 4 31B: keys of full-attention layers are their values, with fewer, wider heads."""

    config = LARGE
    gguf_fields = FULL_LAST
    rerouted = True  # as above


class TestMixture(ArchitectureTests):
    """Gemma 4 26B-A4B: routed experts beside each MLP."""

    config = MIXTURE
    gguf_fields = FULL_LAST
    rerouted = True


class TestUnified(ArchitectureTests):
    """Gemma 4 12B's language model."""

    config = {
        **{k: v for k, v in LARGE.items() if "per_layer" not in k},
        "architectures": ["Gemma4UnifiedForCausalLM"],
        "model_type": "gemma4_unified_text",
    }
    rerouted = True  # as above


@pytest.mark.slow  # test_gemma4_seeing.py has its images
class TestSmallWithEncoders(ArchitectureTests):
    """Gemma 4 E2B, the language model of a checkpoint that also sees."""

    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {k: v for k, v in SMALL.items() if k != "architectures"},
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 64,
        },
        "audio_config": None,
        "image_token_id": 150,
        "boi_token_id": 151,
        "eoi_token_id": 152,
    }
    rerouted = True  # as above


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"hidden_activation": "relu"}, "hidden_activation"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"enable_moe_block": True}, "num_experts"),
        ({"global_head_dim": 0}, "rotary dimension"),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Gemma4Config.from_json({**SMALL, **damage})


def test_fields_that_configs_leave_out_are_those_of_transformers() -> None:
    from transformers import Gemma4TextConfig

    ours, theirs = Gemma4Config.from_json({}), Gemma4TextConfig()
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "sliding_window",
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "tie_word_embeddings",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert list(ours.layer_types) == theirs.layer_types
    rope: Any = theirs.rope_parameters
    assert ours.rope.rope_theta == rope[FULL]["rope_theta"]
    assert ours.rope.partial_rotary_factor == rope[FULL]["partial_rotary_factor"]
    assert ours.local_rope.rope_theta == rope[SLIDING]["rope_theta"]


def test_layers_that_read_keys_of_others_keep_none() -> None:
    """Of Gemma 4 E2B's 35 layers 15 have keys and values."""
    types = ([SLIDING] * 4 + [FULL]) * 7
    sizes = {"num_hidden_layers": 35, "layer_types": types, "num_kv_shared_layers": 20}
    config = Gemma4Config.from_json(sizes)
    assert len(config.cache_specs()) == 15
    assert [config.source(n) for n in (3, 14, 15, 19, 34)] == [3, 14, 13, 14, 14]
