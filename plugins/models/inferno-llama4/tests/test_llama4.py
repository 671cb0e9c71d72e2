from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests, Catalog, Toy, generate, load_toy
from inferno_llama4.config import Llama4Config
from inferno_llama4.gguf import LLAMA4

SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForCausalLM"],
    "model_type": "llama4_text",
    "attention_bias": False,
    "attention_chunk_size": 16,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "floor_scale": 24,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.1,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "max_position_embeddings": 256,
    "no_rope_layers": [],
    "num_attention_heads": 4,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "use_qk_norm": True,
    "vocab_size": 160,
}
"""Fields of Scout's config.json, with chunks that prompts of the kit are longer than."""


class TestScout(ArchitectureTests):
    """Experts in every layer, normalized queries and keys, every fourth layer without rotation."""

    config = SCOUT
    rerouted = True
    in_gguf = False  # files do not store the size of chunks

    def test_experts_that_are_stored_apart_are_the_same(
        self,
        toy: Toy,
        checkpoint: Path,
        catalog: Catalog,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        """As quantized checkpoints have them."""
        tensors = dict[str, Tensor]()
        for name, tensor in load_file(checkpoint / "model.safetensors").items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                tensors[name] = tensor
                continue
            path, _, matrix = name.rpartition(".")
            names = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
            for number, expert in enumerate(tensor):
                for module, part in zip(names, expert.T.chunk(len(names)), strict=True):
                    tensors[f"{path}.{number}.{module}.weight"] = part.contiguous()
        save_file(tensors, tmp_path / "model.safetensors")
        shutil.copy(checkpoint / "config.json", tmp_path)
        ours = generate(load_toy(tmp_path, catalog), prompts, 8)
        theirs = generate(toy, prompts, 8)
        assert [each.token_ids for each in ours] == [each.token_ids for each in theirs]


class TestMaverick(ArchitectureTests):
    """Experts in every second layer, and chunks that no context here is longer than."""

    config = {
        **SCOUT,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "interleave_moe_layer_step": 2,
        "moe_layers": [1, 3],
        "rope_scaling": None,
    }
    rerouted = True


class TestOdd(ArchitectureTests):
    """Of no checkpoint: several blocks in a chunk, several experts of a token, biases
    and no norms, and layers that are listed one by one."""

    config = {
        **SCOUT,
        "attention_bias": True,
        "attention_chunk_size": 48,
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "moe_layers": [0, 2],
        "no_rope_layers": [1, 1, 0],
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "tie_word_embeddings": True,
        "use_qk_norm": False,
    }
    rerouted = True
    in_gguf = False


def test_published_configs_leave_much_to_their_defaults() -> None:
    plain = Llama4Config.from_json({"model_type": "llama4_text", "attn_temperature_tuning": 4})
    assert plain.attention_chunk_size == 8192 and plain.rope.rope_theta == 500_000.0
    assert [n for n in range(9) if not plain.rotates(n)] == [3, 7]
    chunks = [plain.attention_spec(n).attention_chunk for n in range(4)]
    assert chunks == [8192, 8192, 8192, None] and plain.attn_temperature_tuning
    assert all(map(plain.has_experts, range(48))) and plain.num_experts == 16
    every_other = Llama4Config.from_json({"interleave_moe_layer_step": 2})
    assert [n for n in range(6) if every_other.has_experts(n)] == [1, 3, 5]
    dense = Llama4Config.from_json({"moe_layers": []})
    assert dense.num_experts == 0 and not any(map(dense.has_experts, range(48)))


def test_files_of_128_experts_mean_keys_that_are_not_normalized() -> None:
    """As llama.cpp reads Maverick's: they do not say it."""
    assert LLAMA4.config is not None
    for experts, normalized in ((16, True), (128, False)):
        read = Llama4Config.from_json(LLAMA4.config({"num_local_experts": experts}))
        assert read.use_qk_norm is normalized


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"attention_chunk_size": 0}, "attention_chunk_size"),
        ({"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 4}, "chunk_size"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"no_rope_layers": [1]}, "no_rope_layers"),
        ({"no_rope_layers": [1, 1, 2, 0]}, "no_rope_layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ({"interleave_moe_layer_step": 0}, "interleave_moe_layer_step"),
        ({"moe_layers": [4]}, "moe_layers"),
        ({"moe_layers": [-1]}, "moe_layers"),
        ({"floor_scale": 0}, "floor_scale"),
        ({"attn_temperature_tuning": "yes"}, "attn_temperature_tuning"),
        ({"intermediate_size_mlp": -1}, "intermediate_size_mlp"),
        ({"num_local_experts": 10**9}, "num_local_experts"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Llama4Config.from_json({**SCOUT, **damage})
