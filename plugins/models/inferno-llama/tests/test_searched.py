"""DeciLM and Llama-Nemotron, whose layers differ. transformers has none: the reference is made of
its Llama's parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig as TheirConfig
from transformers.models.llama import modeling_llama as llama

from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno.testing import ArchitectureTests, randomize
from inferno_llama.searched_config import Block, SearchedConfig

OFF = {"replace_with_linear": False, "sparsify": None}


def block(group: int | None, factor: float | None) -> dict[str, Any]:
    return {
        "attention": {"n_heads_in_group": group, "no_op": group is None, **OFF},
        "ffn": {"ffn_mult": factor, "no_op": factor is None, **OFF},
    }


NEMOTRON: dict[str, Any] = {
    "architectures": ["DeciLMForCausalLM"],
    "attention_bias": False,
    "block_configs": [block(2, 5.25), block(None, 2.0), block(4, 7.0), block(2, None)],
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": None,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 160,
}
"""Fields of Llama-3_3-Nemotron-Super-49B's config.json, but for its type, which transformers
lacks."""
WIDTHS = (256, 256, 512, 0)


class Reference(nn.Module):
    """Layers of transformers' Llama, or parts of them: key/value heads and width of each."""

    def __init__(self, layers: list[tuple[int, int]]) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(160, 64)
        self.model.layers = nn.ModuleList()
        for heads, width in layers:
            layer, config = nn.Module(), _llama(max(heads, 1), max(width, 1))
            if heads:
                layer.input_layernorm = llama.LlamaRMSNorm(64, 1e-5)
                layer.self_attn = llama.LlamaAttention(config, 0)
            if width:
                layer.post_attention_layernorm = llama.LlamaRMSNorm(64, 1e-5)
                layer.mlp = llama.LlamaMLP(config)
            self.model.layers.append(layer)
        self.model.norm = llama.LlamaRMSNorm(64, 1e-5)
        self.lm_head = nn.Linear(64, 160, bias=False)
        self.rotary: Any = llama.LlamaRotaryEmbedding(_llama(1, 1))
        randomize(self)
        self.eval()

    def forward(self, ids_1L: Tensor) -> Any:
        parts: Any = self.model
        x_1LD = parts.embed_tokens(ids_1L)
        turned = self.rotary(x_1LD, torch.arange(ids_1L.shape[1])[None])
        for layer in parts.layers:
            if hasattr(layer, "self_attn"):
                normal_1LD = layer.input_layernorm(x_1LD)
                x_1LD = x_1LD + layer.self_attn(normal_1LD, turned, None)[0]
            if hasattr(layer, "mlp"):
                x_1LD = x_1LD + layer.mlp(layer.post_attention_layernorm(x_1LD))
        return SimpleNamespace(logits=self.lm_head(parts.norm(x_1LD)))


def _llama(heads: int, width: int) -> Any:
    made: Any = TheirConfig
    return made(
        hidden_size=64,
        intermediate_size=width,
        num_attention_heads=4,
        num_key_value_heads=heads,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        attn_implementation="sdpa",
    )


class TestNemotron(ArchitectureTests):
    """Llama-3_3-Nemotron-Super-49B: a layer without attention, one without an MLP, others of
    several widths and numbers of key/value heads."""

    config = NEMOTRON

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        return Reference(list(zip((2, 0, 1, 2), WIDTHS, strict=True)))


class TestDeciLM(ArchitectureTests):
    """DeciLM-7B: other numbers of key/value heads in each layer, and one width."""

    config = {
        **{name: value for name, value in NEMOTRON.items() if name != "block_configs"},
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_key_value_heads_per_layer": [4, 1, 2],
    }

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        return Reference([(heads, 96) for heads in (4, 1, 2)])


def test_layers_have_what_they_say() -> None:
    read = SearchedConfig.from_json(NEMOTRON)
    assert read.blocks == tuple(map(Block, (2, 0, 1, 2), WIDTHS))
    assert read.spec_layers == (0, 2, 3) and len(read.cache_specs()) == 3


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        ({"block_configs": None}, CheckpointError, "neither block_configs nor"),
        ({"block_configs": [block(2, 2.0)]}, CheckpointError, "describes 1 layers"),
        ({"block_configs": ["dense"] * 4}, CheckpointError, "n_heads_in_group None"),
        ({"block_configs": [block(0, 2.0)] * 4}, CheckpointError, "n_heads_in_group 0"),
        ({"block_configs": [block(3, 2.0)] * 4}, CheckpointError, "n_heads_in_group 3"),
        (
            {"block_configs": [{"attention": {"replace_with_linear": True}}] * 4},
            UnsupportedError,
            "replace_with_linear",
        ),
    ],
)
def test_a_bad_config_is_an_error_that_says_why(
    damage: dict[str, Any], error: type[InfernoError], named: str
) -> None:
    with pytest.raises(error, match=named):
        SearchedConfig.from_json({**NEMOTRON, **damage})


def test_heads_of_every_layer_are_a_part_of_the_query_heads() -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads .* is not divisible by"):
        SearchedConfig.from_json({**TestDeciLM.config, "num_key_value_heads_per_layer": [4, 3, 2]})
