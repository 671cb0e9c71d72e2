from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inferno.errors import CheckpointError
from inferno.testing import (
    ArchitectureTests,
    Catalog,
    Toy,
    generate,
    gguf_dialect,
    load_toy,
    write_gguf,
)
from inferno_glm4.config import Glm4Config

GLM_4: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
GLM: dict[str, Any] = {
    **GLM_4,
    "architectures": ["GlmForCausalLM"],
    "model_type": "glm",
    "head_dim": 16,
}


class TestGlm4(ArchitectureTests):
    """GLM-4-9B-0414: norms on both sides, half of each head rotated, biases of q, k and v."""

    config = GLM_4


class TestGlm4Of32B(ArchitectureTests):
    """GLM-4-32B-0414: no biases, several key/value heads; stretched by YaRN, as its model card
    tells for long contexts."""

    config = {
        **GLM_4,
        "attention_bias": False,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    }


class TestGlm(ArchitectureTests):
    """glm-4-9b-chat-hf: norms before attention and MLP only, a tiny epsilon, rotary fields left
    out."""

    config = {
        k: v
        for k, v in {**GLM, "rms_norm_eps": 1.5625e-7}.items()
        if k not in ("partial_rotary_factor", "rope_theta")
    }

    def test_a_file_of_the_first_checkpoints_gives_the_same_tokens(
        self, toy: Toy, checkpoint: Path, catalog: Catalog, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        """GGUF files of glm-4-9b-chat as it was published have q, k and v in one matrix, and no
        width of heads."""
        if (dialect := gguf_dialect(catalog, "GlmForCausalLM")) is None:
            pytest.skip("no plugin reads GGUF files")
        tensors = load_file(checkpoint / "model.safetensors")
        glm4 = {name: value for name, value in GLM.items() if name != "head_dim"} | {
            "rms_norm_eps": 1.5625e-7
        }
        write_gguf(tmp_path / "toy.gguf", dialect, glm4, tensors, "F16", fused={"blk.{n}.attn_qkv"})
        fused_toy = load_toy(tmp_path / "toy.gguf", catalog)
        for ours, theirs in zip(
            generate(fused_toy, prompts, 8), generate(toy, prompts, 8), strict=True
        ):
            assert ours.token_ids == theirs.token_ids
            torch.testing.assert_close(ours.logits_NV, theirs.logits_NV, rtol=1e-3, atol=1e-3)


class TestGlmEdge(ArchitectureTests):
    """glm-edge-1.5b-chat: whole heads rotated, no biases, tied here."""

    config = {
        **GLM,
        "partial_rotary_factor": 1.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Glm4Config.from_json({**GLM_4, **damage})
