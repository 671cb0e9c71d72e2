from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests, Catalog, load_catalog
from inferno_mistral.config import MixtralConfig
from inferno_mistral.gguf import MISTRAL

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 160,
}
"""Every field that Mixtral-8x7B-Instruct-v0.1's config.json has."""


class TestMixtral(ArchitectureTests):
    """Mixtral-8x7B: 2 of 8 experts. Its GGUF files are named as Llama's, whose plugin reads them
    where it is installed."""

    rerouted = True
    config = MIXTRAL


class TestMixtralOf22B(ArchitectureTests):
    """Mixtral-8x22B, an odd number of experts, heads wider than hidden size / heads, a tied head;
    its GGUF files by this plugin alone."""

    rerouted = True
    config = {
        **MIXTRAL,
        "head_dim": 32,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 1,
        "num_local_experts": 5,
        "tie_word_embeddings": True,
    }

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        installed = {plugin.distribution for plugin in load_catalog().plugins}
        return load_catalog(disable={"inferno-llama"} & installed)


class TestWindow(ArchitectureTests):
    """A window, shorter than the prompt, as the first config.json of Mixtral-8x7B had."""

    in_gguf = False  # llama.cpp's converter drops the window
    rerouted = True
    config = {**MIXTRAL, "sliding_window": 12}


def test_a_gguf_file_with_experts_is_mixtral() -> None:
    assert MISTRAL.config is not None
    fields = {"model_type": "mistral", "num_hidden_layers": 2}
    assert MISTRAL.config(fields) == fields
    read = MISTRAL.config({**fields, "num_local_experts": 8})
    assert (read["architectures"], read["model_type"]) == (["MixtralForCausalLM"], "mixtral")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_local_experts": 0}, "num_experts"),
        ({"sliding_window": 0}, "sliding_window"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        MixtralConfig.from_json({**MIXTRAL, **damage})
