from __future__ import annotations

from typing import Any

import pytest

from inferno.configs import FULL
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_nemotron_h.config import MAMBA, MLP, MOE, NemotronHConfig

NANO: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "chunk_size": 128,
    "conv_kernel": 4,
    "eos_token_id": 2,
    "expand": 2,
    "head_dim": 16,
    "hidden_dropout": 0.0,
    "hidden_size": 64,
    "hybrid_override_pattern": "ME*E",
    "initializer_range": 0.1,
    "intermediate_size": 96,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 16,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 8,
    "mamba_proj_bias": False,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "n_group": 1,
    "n_groups": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "partial_rotary_factor": 1.0,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
    "ssm_state_size": 32,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, float("inf")],
    "time_step_max": 0.1,
    # transformers 5.23 raises dt to it, in prompts only; NVIDIA's code keeps to time_step_limit.
    "time_step_min": 1e-30,
    "topk_group": 1,
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
    "vocab_size": 160,
}
"""What Nemotron-3-Nano-30B-A3B's config.json has."""


class TestNano(ArchitectureTests):
    """Nemotron 3 Nano: states, a layer of attention without positions, experts without gates."""

    config = NANO
    rerouted = True
    gguf_fields = {
        "inner_size": 128,
        "intermediate_size": [0, 32, 0, 32],
        "num_key_value_heads": [0, 0, 2, 0],
    }
    gguf_unsaid = frozenset({"intermediate_size"})


class TestDense(ArchitectureTests):
    """Nemotron-H and Nemotron Nano 2: MLPs in layers of their own. Biases, one group of heads."""

    config = {
        **NANO,
        "hybrid_override_pattern": "M-*-",
        "mlp_bias": True,
        "n_groups": 1,
        "use_bias": True,
        "use_conv_bias": False,
    }
    gguf_fields = {
        "inner_size": 128,
        "intermediate_size": [0, 96, 0, 96],
        "num_key_value_heads": [0, 0, 2, 0],
    }
    gguf_unsaid = frozenset(
        {
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "num_experts_per_tok",
            "routed_scaling_factor",
        }
    )


class TestLatent(ArchitectureTests):
    """Nemotron 3 Super: experts read and write narrower rows, and are picked by groups."""

    config = {
        **NANO,
        "hybrid_override_pattern": "M*E",
        "moe_latent_size": 32,
        "n_group": 4,
        "num_hidden_layers": 3,
        "topk_group": 2,
    }
    rerouted = True
    gguf_fields = {
        "inner_size": 128,
        "intermediate_size": [0, 0, 32],
        "num_key_value_heads": [0, 2, 0],
    }
    gguf_unsaid = frozenset({"intermediate_size"})


def test_layers_are_lettered_or_listed() -> None:
    read = NemotronHConfig.from_json(NANO)
    assert read.layer_types == (MAMBA, MOE, FULL, MOE)
    without = {k: v for k, v in NANO.items() if k != "hybrid_override_pattern"}
    for listed in (["mamba", "moe", "attention", "moe"], list(read.layer_types)):
        assert NemotronHConfig.from_json({**without, "layers_block_type": listed}) == read
    assert NemotronHConfig.from_json({**NANO, "time_step_limit": [0.5, 1.5]}).dt_limit == (0.5, 1.5)
    dense = NemotronHConfig.from_json({**NANO, "hybrid_override_pattern": "M-*-"})
    assert dense.layer_types == (MAMBA, MLP, FULL, MLP) and dense.num_experts == 0


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hybrid_override_pattern": "MX*E"}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": 4}, "hybrid_override_pattern"),
        ({"layers_block_type": ["mamba", 3]}, "layers_block_type"),
        ({"num_hidden_layers": 5}, "num_hidden_layers"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
        ({"sliding_window": 16}, "sliding_window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"n_groups": 3}, "mamba_num_heads"),
        ({"ssm_state_size": 0}, "ssm_state_size"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"moe_latent_size": 0}, "moe_latent_size"),
        ({"time_step_limit": "short"}, "time_step_limit"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        NemotronHConfig.from_json({**NANO, **damage})
