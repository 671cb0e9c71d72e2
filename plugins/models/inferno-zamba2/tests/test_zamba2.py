from __future__ import annotations

from typing import Any

import pytest

from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_zamba2.config import Zamba2Config

ZAMBA2: dict[str, Any] = {
    "architectures": ["Zamba2ForCausalLM"],
    "model_type": "zamba2",
    "adapter_rank": 8,
    "add_bias_linear": False,
    "attention_dropout": 0.0,
    "attention_head_dim": 32,
    "attention_hidden_size": 128,
    "bos_token_id": 1,
    "chunk_size": 256,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_headdim": 16,
    "mamba_ngroups": 1,
    "max_position_embeddings": 256,
    "n_mamba_heads": 8,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_logits_to_keep": 1,
    "num_mem_blocks": 1,
    "num_query_groups": 4,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "tie_word_embeddings": True,
    "time_step_floor": 0.0001,
    "time_step_limit": None,
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "use_conv_bias": True,
    "use_long_context": False,
    "use_mem_rope": True,
    "use_shared_attention_adapter": True,
    "vocab_size": 160,
}
"""Fields of Zamba2-1.2B's config.json."""


class Zamba2Tests(ArchitectureTests):
    """What a block gives is not added to what it reads, so that rounding counts more: choices are
    compared with those of transformers' model when it is rounded itself."""

    rerouted = True


class TestSmall(Zamba2Tests):
    """Zamba2-1.2B: one block, which each of its uses adapts throughout, with rotated heads."""

    config = ZAMBA2


class TestLarge(Zamba2Tests):
    """Zamba2-2.7B and 7B: two blocks that take turns, whose attention is not adapted, groups of
    heads, and no positions."""

    config = {
        **ZAMBA2,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
        "mamba_ngroups": 2,
        "num_mem_blocks": 2,
        "use_mem_rope": False,
        "use_shared_attention_adapter": False,
    }


class TestBiased(Zamba2Tests):
    """Of no checkpoint: biases, a state of another width, a hybrid layer first."""

    config = {
        **ZAMBA2,
        "add_bias_linear": True,
        "layers_block_type": ["hybrid", "mamba", "hybrid", "mamba"],
        "mamba_d_state": 32,
        "mamba_headdim": 32,
        "n_mamba_heads": 4,
    }


def test_a_hybrid_layer_has_attention_and_a_state() -> None:
    read = Zamba2Config.from_json(ZAMBA2)
    kinds = [type(spec) for spec in read.cache_specs()]
    assert kinds == [StateSpec, AttentionSpec, StateSpec] * 2
    assert read.spec_layers == (0, 1, 1, 2, 3, 3)
    assert read.attention_spec(1).scale == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 3}, "must be a multiple"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"layers_block_type": ["mamba"] * 3}, "layers_block_type has 3"),
        ({"layers_block_type": ["mamba"] * 3 + ["dense"]}, "dense"),
        ({"n_mamba_heads": 7}, "mamba_n_heads"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"use_long_context": True}, "use_long_context"),
        ({"num_mem_blocks": 0}, "num_mem_blocks"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        Zamba2Config.from_json({**ZAMBA2, **damage})
    assert named in f"{refused.value.cause} {refused.value.remedy}"
