from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests, Toy, generate, load_toy
from inferno_llama.config import LlamaConfig

LLAMA_2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LLAMA_3: dict[str, Any] = {**LLAMA_2, "num_key_value_heads": 2, "rope_theta": 500_000.0}


class TestLlama2(ArchitectureTests):
    """A key/value head for each query head, and a config.json that leaves out all that had a
    default then."""

    config = LLAMA_2

    def test_rotary_tables_in_the_checkpoint_are_left_alone(
        self, toy: Toy, checkpoint: Path, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        """The first conversions stored them."""
        tensors = load_file(checkpoint / "model.safetensors")
        tensors |= {
            f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(2)
        }
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(self.config))
        [ours], [theirs] = (generate(t, prompts[-1:]) for t in (load_toy(tmp_path), toy))
        torch.testing.assert_close(ours.logits_NV, theirs.logits_NV)


class TestLlama3(ArchitectureTests):
    """Llama 3.1: grouped queries, long wavelengths stretched."""

    config = {
        **LLAMA_3,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }


class TestLlama32(ArchitectureTests):
    """Llama 3.2 1B: a tied head, head_dim spelt out."""

    config = {**TestLlama3.config, "tie_word_embeddings": True, "head_dim": 16}


class TestRopeParameters(ArchitectureTests):
    """As transformers 5 writes it."""

    config = {
        **LLAMA_2,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20_000.0},
        "attention_bias": True,
        "mlp_bias": True,
    }


class TestOldLinear(ArchitectureTests):
    """The first spelling: `type`."""

    config = {**LLAMA_2, "rope_scaling": {"type": "linear", "factor": 4.0}}


class TestYarn(ArchitectureTests):
    config = {
        **LLAMA_3,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
        },
    }


class TestYi(ArchitectureTests):
    """Yi-1.5: Llama with another base, other end tokens, few key/value heads."""

    config = {
        **LLAMA_2,
        "num_key_value_heads": 1,
        "rope_theta": 5_000_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


class TestDeepSeekDistill(ArchitectureTests):
    """DeepSeek-R1-Distill-Llama-8B: a Llama 3.1 config, with the fields it is published with."""

    config = {
        **TestLlama3.config,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def test_needs_of_the_first_llamas_have_as_many_key_heads_as_query_heads() -> None:
    need = AttentionSpec(num_heads=4, num_kv_heads=4, head_dim=16, scale=0.25)
    assert LlamaConfig.from_json(LLAMA_2).cache_specs() == [need, need]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"rope_scaling": {"type": "spiral"}}, "spiral"),
        ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        LlamaConfig.from_json({**LLAMA_2, **damage})


def test_fields_it_does_not_know_change_nothing() -> None:
    plain = LlamaConfig.from_json(LLAMA_2)
    assert LlamaConfig.from_json({**LLAMA_2, "pretraining_tp": 2}) == plain
    assert attrs.evolve(plain, rms_norm_eps=1e-6) != plain
