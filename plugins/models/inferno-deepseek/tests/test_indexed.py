"""DeepSeek-V3.2 and GLM-5: latent attention over the positions that an index finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.contracts import CacheTensor, IndexSpec
from inferno.errors import CheckpointError
from inferno.testing import (
    ArchitectureTests,
    MTPTests,
    generate,
    load_toy,
    ragged_prompts,
    transformers_model,
)
from inferno_deepseek.gguf import GLM_DSA
from inferno_deepseek.indexed_config import GlmMoeDsaConfig, IndexedConfig

V32: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "n_group": 4,
    "topk_group": 3,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "index_topk": 24,
    "index_n_heads": 32,  # with few, scores tie at 0, and transformers may take any of equal ones
    "index_head_dim": 16,
}
GLM5: dict[str, Any] = {
    **V32,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "n_group": 1,
    "topk_group": 1,
    "rope_scaling": None,
    "rms_norm_eps": 1e-5,
    "index_topk": 12,  # from 96 tokens on, each query of a prompt gathers its own
    "indexer_types": ["full", "shared", "full"],
}

GGUF: dict[str, Any] = {"key_length": 40, "value_length": 24, "yarn_log_multiplier": None}
"""What llama.cpp's converter derives."""
GGUF_V32 = {**GGUF, "yarn_log_multiplier": 0.1}


class TestV32(ArchitectureTests):
    """DeepSeek-V3.2, with contexts of up to 5.6 times as many tokens as its index finds."""

    rerouted = True
    config = V32
    gguf_fields = GGUF_V32
    gguf_like = "glm-dsa"


class TestGlm5(ArchitectureTests):
    """GLM-5: the index rotates neighbours, and a layer attends to what the one before found."""

    rerouted = True
    config = GLM5
    gguf_fields = GGUF


class TestGlm5Gguf(ArchitectureTests):
    """GLM-5 as first published: each layer has an index."""

    rerouted = True
    config = {**GLM5, "num_hidden_layers": 2, "indexer_types": None}
    gguf_fields = GGUF
    gguf_unsaid = frozenset({"num_nextn_predict_layers"})


@pytest.mark.slow
class TestV32MTP(MTPTests):
    """The multi-token-prediction layer of DeepSeek-V3.2 has an index, too."""

    config = {**V32, **GGUF_V32, "num_nextn_predict_layers": 1}


class TestGlm5MTP(MTPTests):
    config = {**TestGlm5Gguf.config, **GGUF, "num_nextn_predict_layers": 1}


@pytest.fixture(scope="module")
def v32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("v32")
    model: Any = transformers_model(V32)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({**V32, "dtype": "float32"}))
    return path


def test_contexts_that_the_index_finds_whole_are_v3s(v32: Path, tmp_path: Path) -> None:
    """Longer ones are not."""
    tensors = load_file(v32 / "model.safetensors")
    plain = {name: tensor for name, tensor in tensors.items() if ".indexer." not in name}
    save_file(plain, tmp_path / "model.safetensors")
    v3 = {**V32, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    (tmp_path / "config.json").write_text(json.dumps({**v3, "dtype": "float32"}))
    [short, long] = ragged_prompts(160, (V32["index_topk"] - 3, 60))
    for prompt, equal in ((short, True), (long, False)):
        [ours], [theirs] = (generate(load_toy(path), [prompt], 4) for path in (v32, tmp_path))
        same = torch.allclose(ours.logits_NV, theirs.logits_NV, rtol=1e-4, atol=1e-4)
        assert same is equal


def test_the_keys_of_an_index_are_beside_the_latents(v32: Path) -> None:
    plan = load_toy(v32).plan
    [use] = plan.attention
    assert use.cache == {
        "k": CacheTensor((plan.block_size, 1, 72), "float32"),
        "index_k": CacheTensor((plan.block_size, 1, 16), "float32"),
    }
    assert plan.groups[0].bytes_per_token == 2 * 4 * (72 + 16)


def test_an_8_bit_cache_holds_what_is_attended_to_and_not_what_finds_it(v32: Path) -> None:
    [use] = load_toy(v32, kv_cache_dtype="fp8").plan.attention
    assert {name: tensor.dtype for name, tensor in use.cache.items()} == {
        "k": "float8_e4m3fn",
        "k_scales": "float32",
        "index_k": "float32",
    }


def shared(**fields: Any) -> list[int]:
    """Return which of four layers share an index."""
    read = GlmMoeDsaConfig.from_json(
        {**GLM5, "num_hidden_layers": 4, "indexer_types": None, **fields}
    )
    specs = [read.attention_spec(layer).index for layer in range(4)]
    assert all(isinstance(spec, IndexSpec) and spec.top_k == 12 for spec in specs)
    return [layer for layer, spec in enumerate(specs) if spec is not None and spec.shared]


def test_layers_that_share_an_index_are_listed_or_counted() -> None:
    assert shared() == []
    assert shared(indexer_types=["full", "shared", "shared", "full"]) == [1, 2]
    assert shared(index_topk_pattern="FSFS") == [1, 3]
    assert shared(index_topk_freq=2) == [2]
    assert shared(index_topk_freq=3, index_skip_topk_offset=1) == [1, 2]
    config = GlmMoeDsaConfig.from_json(GLM5)
    layers = [n for n in range(config.num_hidden_layers) if not config.shares(n)]
    assert [*config.stage_starts] == layers != [*range(config.num_hidden_layers)]


def test_gguf_files_list_the_layers_with_an_index_as_llama_cpp_does() -> None:
    """By truth values, of the model's layers only; or not at all."""
    assert GLM_DSA.config is not None and GLM_DSA.inverse is not None
    written = GLM_DSA.inverse({**GLM5, "num_nextn_predict_layers": 1})
    assert written["indexer_types"] == [True, False, True]
    for stored, expected in ((written["indexer_types"], [1]), (None, []), (True, [])):
        fields = {**GLM5, **written, "indexer_types": stored, "drafts": [False, False, False, True]}
        read = GlmMoeDsaConfig.from_json(GLM_DSA.config(fields))
        assert [n for n in range(read.num_hidden_layers) if read.shares(n)] == expected
        assert (read.num_hidden_layers, read.num_nextn_predict_layers) == (3, 1)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"indexer_types": ["shared", "full", "full"]}, "indexer_types"),
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"indexer_types": ["full", "some", "full"]}, "indexer_types"),
        ({"indexer_types": None, "index_topk_pattern": "FXF"}, "indexer_types"),
        ({"indexer_types": None, "index_topk_freq": "2"}, "index_topk_freq"),
        ({"indexer_types": None, "index_skip_topk_offset": -1}, "index_skip_topk_offset"),
    ],
)
def test_a_bad_list_of_indices_is_an_error_that_names_the_field(
    damage: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        GlmMoeDsaConfig.from_json({**GLM5, **damage})


@pytest.mark.parametrize(
    "damage",
    [
        {"index_topk": 0},
        {"index_n_heads": -1},
        {"index_head_dim": 4},
        {"index_head_dim": "16"},
        {"indexer_rope_interleave": 1},
        {"q_lora_rank": None},
    ],
)
def test_a_bad_size_of_the_index_is_an_error_that_names_the_field(damage: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(damage))):
        IndexedConfig.from_json({**V32, **damage})
