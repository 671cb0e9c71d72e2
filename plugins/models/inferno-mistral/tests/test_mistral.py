from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError
from inferno.testing import (
    ArchitectureTests,
    Catalog,
    Toy,
    generate,
    gguf_dialect,
    load_catalog,
    load_toy,
    reference_logits,
    transformers_model,
    write_gguf,
)
from inferno_mistral.config import MistralConfig

V0_3: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
}


def without_llama() -> Catalog:
    """GGUF files of Mistral are read by the plugin for Llama where that is installed."""
    installed = {plugin.distribution for plugin in load_catalog().plugins}
    return load_catalog(disable={"inferno-llama"} & installed)


def test_a_decoder_saved_without_its_head_ties_it(tmp_path: Path) -> None:
    """As sentence-transformers save it: MistralModel, whose tensors are not under `model`."""
    reference: Any = transformers_model(V0_3)
    reference.base_model.save_pretrained(tmp_path)
    toy = load_toy(tmp_path, without_llama())
    assert toy.plan.architecture == "MistralModel"
    reference.lm_head.weight.data = reference.get_input_embeddings().weight.data
    expected_V = reference_logits(reference, [5, 6, 7])[-1]
    torch.testing.assert_close(toy.logits([5, 6, 7]), expected_V, rtol=1e-4, atol=1e-4)


class MistralTests(ArchitectureTests):
    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return without_llama()


class TestV01(MistralTests):
    """Mistral 7B v0.1 and Zephyr: a sliding window on every layer, shorter than the longest
    prompt."""

    in_gguf = False  # llama.cpp's converter drops the window
    config = {**V0_3, "rope_theta": 10_000.0, "sliding_window": 12}


class TestV03(MistralTests):
    """Mistral 7B v0.2 and v0.3, Large: no window any more."""

    config = V0_3

    def test_a_gguf_file_opens_with_either_plugin(
        self, toy: Toy, checkpoint: Path, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        """Its files name the architecture "llama": Llama's plugin takes them where both are
        installed, with the same result."""
        both, alone = load_catalog(), without_llama()
        missing = {"inferno-llama", "inferno-gguf"} - {
            plugin.distribution for plugin in both.plugins
        }
        if missing:
            pytest.skip(f"{' and '.join(sorted(missing))} not installed")
        _, opened = alone.open(checkpoint)
        file = tmp_path / "toy.gguf"
        dialect = gguf_dialect(alone, "MistralForCausalLM")
        assert dialect is not None
        tensors = {name: opened.read(name) for name in opened.tensors}
        write_gguf(file, dialect, self.config, tensors, "F16")
        tokens = []
        for catalog, name in ((both, "LlamaForCausalLM"), (alone, "MistralForCausalLM")):
            loaded = load_toy(file, catalog)
            assert loaded.plan.architecture == name
            tokens.append([o.token_ids for o in generate(loaded, prompts, 16)])
        assert tokens[0] == tokens[1]


class TestNemo(MistralTests):
    """Mistral Nemo and Small (2409, 2501): head_dim is given, and is not hidden_size / heads."""

    config = {
        **V0_3,
        "head_dim": 32,
        "num_key_value_heads": 1,
        "rope_theta": 100_000_000.0,
        "hidden_act": "silu",
    }


class TestMinistral(MistralTests):
    """Ministral 8B as transformers writes it: some layers slide, others see everything."""

    in_gguf = False  # as v0.1
    config = {
        **V0_3,
        "architectures": ["MinistralForCausalLM"],
        "model_type": "ministral",
        "head_dim": 32,
        "num_hidden_layers": 3,
        "sliding_window": 12,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    }


class TestTied(MistralTests):
    """Fine-tunes with a tied head, and a context stretched by YaRN (Yarn-Mistral-7b-128k)."""

    config = {
        **V0_3,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }


def windows(config: dict[str, Any]) -> list[int | None]:
    """Of all layers."""
    specs = MistralConfig.from_json(config).cache_specs()
    return [spec.sliding_window for spec in specs if isinstance(spec, AttentionSpec)]


def test_a_window_that_is_not_named_is_that_of_the_first_mistral() -> None:
    silent = {name: value for name, value in V0_3.items() if name != "sliding_window"}
    assert windows(silent) == [4096, 4096]


def test_layer_types_of_a_mistral_are_those_of_a_ministral() -> None:
    """transformers reads such a config as Ministral's, whatever its model_type."""
    config = {**V0_3, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
    assert windows(config) == [None, 8]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": "4096"}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 16.0, "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta",
        ),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        MistralConfig.from_json({**V0_3, **damage})
