from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests
from inferno_hunyuan.config import HunyuanConfig, HunyuanMoeConfig

HUNYUAN: dict[str, Any] = {
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "model_type": "hunyuan_v1_dense",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_cla": False,
    "use_qk_norm": True,
    "vocab_size": 160,
}
"""What Hunyuan-0.5B-Instruct's config.json has."""
THETA = 10_000.0 * 1000.0 ** (16 / 14)


class TestHunyuan(ArchitectureTests):
    """Hunyuan-0.5B to 7B: norms of rotated heads, a stretched base, a tied head."""

    config = HUNYUAN
    # llama.cpp's converter stores the stretched base.
    gguf_fields = {"rope_theta": THETA, "rope_scaling": None, "rope_parameters": None}


class TestPlain(ArchitectureTests):
    """Of no checkpoint: no stretch, biases, one key/value head, wider heads, an untied head."""

    config = {
        **HUNYUAN,
        "attention_bias": True,
        "head_dim": 32,
        "num_key_value_heads": 1,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }


MIXTURE: dict[str, Any] = {
    **HUNYUAN,
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "model_type": "hunyuan_v1_moe",
    "intermediate_size": 48,
    "moe_drop_tokens": False,
    "moe_intermediate_size": [48, 48],
    "moe_topk": [3, 3],
    "num_experts": 8,
    "num_shared_expert": [1, 1],
    "use_mixed_mlp_moe": True,
}
"""What Hunyuan-A13B-Instruct's config.json has."""


class TestMixture(ArchitectureTests):
    """Hunyuan-A13B: routed experts and a shared one in every layer, a tied head."""

    config = MIXTURE
    gguf_fields = {
        **{"rope_theta": THETA, "rope_scaling": None, "rope_parameters": None},
        **{"moe_intermediate_size": 48, "moe_topk": 3, "num_shared_expert": 1},
    }
    rerouted = True


class TestPlainMixture(ArchitectureTests):
    """Of no checkpoint: no stretch, one expert for each token, an untied head."""

    config = {
        **MIXTURE,
        **{"moe_intermediate_size": 48, "moe_topk": 1, "num_shared_expert": 1},
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }
    rerouted = True


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"moe_topk": [3, 2]}, "moe_topk"),
        ({"moe_topk": []}, "moe_topk"),
        ({"moe_topk": 9}, "num_experts_per_tok"),
        ({"num_experts": [8, 4]}, "num_experts"),
        ({"num_shared_expert": [2, 2]}, "num_shared_expert"),
        ({"moe_intermediate_size": [32, 32]}, "moe_intermediate_size"),
        ({"use_cla": True}, "use_cla"),
    ],
)
def test_a_bad_mixture_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        HunyuanMoeConfig.from_json({**MIXTURE, **damage})


def test_alpha_stretches_the_base_for_any_context() -> None:
    read = HunyuanConfig.from_json(HUNYUAN)
    assert read.rope.rope_type == "default"
    assert read.rope.rope_theta == pytest.approx(THETA)
    without = {"type": "dynamic", "factor": 2.0}
    plain = HunyuanConfig.from_json({**HUNYUAN, "rope_scaling": without})
    assert (plain.rope.rope_type, plain.rope.rope_theta) == ("dynamic", 10_000.0)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_cla": True}, "use_cla"),
        ({"use_qk_norm": False}, "use_qk_norm"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"type": "dynamic", "alpha": -1.0}}, "alpha"),
        ({"rope_scaling": {"type": "dynamic", "alpha": "long"}}, "alpha"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        HunyuanConfig.from_json({**HUNYUAN, **damage})
