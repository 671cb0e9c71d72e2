from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.contracts import TensorInfo
from inferno.errors import CheckpointError
from inferno.testing import (
    ArchitectureTests,
    assert_same_in_ranks,
    generate,
    load_toy,
    ragged_prompts,
    torch_only,
)
from inferno_gpt_oss.checkpoint import per_expert
from inferno_gpt_oss.config import GptOssConfig

GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "sliding_window": 16,
    "rope_theta": 150_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}


class TestGptOss20B(ArchitectureTests):
    """gpt-oss-20b: sinks, windows on the first of every two layers, biases everywhere, stretched
    positions."""

    config = GPT_OSS
    rerouted = True

    def test_experts_in_mxfp4_are_the_numbers_they_stand_for(
        self, checkpoint: Path, tmp_path: Path
    ) -> None:
        """The same from a checkpoint as published, whose experts stay packed, and from one that
        holds transformers' values; also where ranks share it: three blocks of columns are not as
        many for each of two, nor five experts."""
        pytest.importorskip("inferno_mxfp4")
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        packed: dict[str, Tensor] = {}
        dense: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(0)
        for name, tensor in load_file(checkpoint / "model.safetensors").items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                packed[name] = dense[name] = tensor
                continue
            experts, columns, rows = tensor.shape
            shape = (experts, rows, columns // 32)
            blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(121, 125, shape, dtype=torch.uint8, generator=generator)
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            dense[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        toys = []
        for folder, tensors, more in (
            ("packed", packed, {"quantization_config": {"quant_method": "mxfp4"}}),
            ("dense", dense, {}),
        ):
            path = tmp_path / folder
            path.mkdir()
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()},
                path / "model.safetensors",
            )
            (path / "config.json").write_text(
                json.dumps({**self.config, **more, "dtype": "float32"})
            )
            # Kernels round activations.
            toys.append(load_toy(path, torch_only()))
        assert [(use.name, use.count) for use in toys[0].plan.schemes if use.name != "dense"] == [
            ("mxfp4-blocks", 3 * 5 * 3)
        ]
        prompts = ragged_prompts(self.config["vocab_size"])
        outputs = [generate(toy, prompts, 16) for toy in toys]
        for ours, theirs in zip(*outputs, strict=True):
            assert ours.token_ids == theirs.token_ids
            torch.testing.assert_close(ours.logits_NV, theirs.logits_NV, rtol=1e-4, atol=1e-4)
        wanted, path = [ours.token_ids for ours in outputs[0]], tmp_path / "packed"
        for ranks, shared in ((2, {}), (3, {}), (2, {"ep": True}), (1, {"pp": 3}), (2, {"pp": 2})):
            assert_same_in_ranks(path, wanted, torch_only(), ranks, **shared)


class TestGptOss120B(ArchitectureTests):
    """gpt-oss-120b: layer types spelt out, more experts, clamps that are often reached."""

    config = {
        **GPT_OSS,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 8,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 1,
        "swiglu_limit": 0.5,
        "initial_context_length": 32,
    }
    rerouted = True
    in_gguf = False
    """They have no key for the clamp: llama.cpp knows 7."""


class TestOther(ArchitectureTests):
    """Of no checkpoint: full attention before a window, no biases in attention, a tied head,
    another alpha."""

    config = {
        **GPT_OSS,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "sliding_attention"],
        "attention_bias": False,
        "tie_word_embeddings": True,
        "swiglu_alpha": 1.0,
    }
    rerouted = True
    in_gguf = False
    """Nor for the layers' types and alpha."""


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_local_experts": 0}, "num_local_experts"),
        ({"num_experts_per_tok": 6}, "num_experts_per_tok"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        (
            {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
            "chunked_attention",
        ),
        ({"rope_scaling": None}, "rope_scaling"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        GptOssConfig.from_json({**GPT_OSS, **damage})


def test_a_fused_tensor_that_is_no_stack_of_experts_is_refused() -> None:
    class Damaged:
        tensors = {
            "model.layers.0.mlp.experts.gate_up_proj_bias": TensorInfo("float32", (5, 3), 60)
        }

    with pytest.raises(CheckpointError, match="gate_up_proj_bias"):
        per_expert(Damaged())  # type: ignore[arg-type]
