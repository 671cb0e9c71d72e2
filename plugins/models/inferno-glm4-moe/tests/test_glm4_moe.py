from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.errors import CheckpointError
from inferno.testing import (
    ArchitectureTests,
    Catalog,
    MTPTests,
    Toy,
    generate,
    gguf_dialect,
    load_toy,
    write_gguf,
)
from inferno_glm4_moe.config import Glm4MoeConfig

AIR: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [2, 3, 4],
    "first_k_dense_replace": 1,
    "head_dim": 32,  # more than hidden_size / heads, as in all of them
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 0,
    "pad_token_id": 0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 1_000_000.0,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": False,
    "vocab_size": 160,
}
"""Every field that GLM-4.5-Air's config.json has."""


class TestAir(ArchitectureTests):
    """GLM-4.5-Air: biases on queries, keys and values, half of each head rotated, the first layer
    without experts."""

    rerouted = True
    config = AIR

    @pytest.mark.parametrize("kind", ["safetensors", "gguf"])
    def test_multi_token_prediction_layers_are_left_alone(
        self,
        kind: str,
        toy: Toy,
        catalog: Catalog,
        checkpoint: Path,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        """As published: one such layer is stored behind the last, and GGUF files count it."""
        tensors = {
            name: tensor.contiguous()
            for name, tensor in load_file(checkpoint / "model.safetensors").items()
        }
        behind = "model.layers.2."
        last = {
            n.replace("layers.1.", "layers.2."): t.clone()
            for n, t in tensors.items()
            if n.startswith("model.layers.1.")
        }
        wide, square = torch.ones(64, 128), torch.ones(160, 64)
        further = {"eh_proj": wide, "embed_tokens": square, "shared_head.head": square}
        further |= {norm: torch.ones(64) for norm in ("enorm", "hnorm", "shared_head.norm")}
        everything = (
            tensors
            | last
            | {f"{behind}{name}.weight": tensor.clone() for name, tensor in further.items()}
        )
        config = {**self.config, "num_nextn_predict_layers": 1}
        if kind == "gguf":
            path = tmp_path / "toy.gguf"
            dialect = gguf_dialect(catalog, "Glm4MoeForCausalLM")
            assert dialect is not None
            state = write_gguf(path, dialect, {**config, "num_hidden_layers": 3}, everything, "F16")
            tensors = {name: state[name] for name in tensors}
        else:
            path = tmp_path / "all"
            path.mkdir()
            save_file(everything, path / "model.safetensors")
            (path / "config.json").write_text(json.dumps(config))
        twin = tmp_path / "twin"
        twin.mkdir()
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            twin / "model.safetensors",
        )
        (twin / "config.json").write_text(json.dumps(self.config))
        [ours], [theirs] = (generate(load_toy(where), prompts[-1:], 8) for where in (path, twin))
        torch.testing.assert_close(ours.logits_NV, theirs.logits_NV, rtol=1e-4, atol=1e-4)


class TestGlm45(ArchitectureTests):
    """GLM-4.5 and GLM-4.6: norms on heads, weights of the picked experts scaled by 2.5, two layers
    without experts."""

    rerouted = True
    config = {
        **AIR,
        "use_qk_norm": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 2,
        "num_hidden_layers": 3,
        "n_routed_experts": 7,
        "num_attention_heads": 4,
    }


class TestMTP(MTPTests):
    """Multi-token prediction as published with GLM-4.5-Air: one layer, which continues with its own
    output."""

    config = {**AIR, "num_nextn_predict_layers": 1}


class TestTwoMTPLayers(MTPTests):
    """Two multi-token-prediction layers, with GLM-4.5's norms on heads."""

    config = {**AIR, "num_nextn_predict_layers": 2, "use_qk_norm": True}


class TestGroups(ArchitectureTests):
    """Experts in groups of which the best two are picked, two shared experts, a tied head, no layer
    without experts."""

    rerouted = True
    config = {
        **AIR,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "num_attention_heads": 4,
    }


class TestYarn(ArchitectureTests):
    """YaRN on the rotated half, as `rope_parameters` says it."""

    rerouted = True
    config = {
        **{
            name: value
            for name, value in AIR.items()
            if name not in ("rope_theta", "rope_scaling", "partial_rotary_factor")
        },
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 1_000_000.0,
            "partial_rotary_factor": 0.5,
        },
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"n_group": 3}, "n_group"),
        ({"n_group": 2, "topk_group": 3}, "topk_group"),
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Glm4MoeConfig.from_json({**AIR, **damage})
