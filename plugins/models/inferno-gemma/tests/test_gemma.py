from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError
from inferno.testing import ArchitectureTests, EncoderTests, Toy, generate, load_toy
from inferno_gemma.config import Gemma2Config, Gemma3Config, GemmaConfig
from inferno_gemma.gguf import GEMMA2 as GEMMA_2_GGUF
from inferno_gemma.gguf import GEMMA3 as GEMMA_3_GGUF
from inferno_gemma.vision_config import SeeingGemma3Config

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
GEMMA: dict[str, Any] = {
    **SIZES,
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "hidden_act": "gelu",
    "hidden_activation": None,
    "rope_theta": 10_000.0,
}
GEMMA_2: dict[str, Any] = {
    **SIZES,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "num_hidden_layers": 3,
    "sliding_window": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA_3: dict[str, Any] = {
    **SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "sliding_window": 12,
    "sliding_window_pattern": 3,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}


PUBLISHED: dict[str, Any] = {
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
"""The `vision_config` of gemma-3-4b-it."""


class TestGemma2B(ArchitectureTests):
    """Gemma 2B: one key/value head, a head wider than hidden size / heads, "gelu" for its
    approximation."""

    config = {**GEMMA, "num_key_value_heads": 1}


class TestGemma2(ArchitectureTests):
    """Gemma 2 9B: soft caps, a window in every other layer, shorter than the prompt."""

    config = GEMMA_2


class TestGemma2Of27B(ArchitectureTests):
    """Gemma 2 27B: scores scaled by hidden size / heads; caps that bite, and layers named one by
    one."""

    in_gguf = False  # its readers know the scale of 46 layers only, and no types of layers
    config = {
        **GEMMA_2,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 1.5,
        "layer_types": [FULL, FULL, SLIDING],
    }


class TestGemma3(ArchitectureTests):
    """Gemma 3 1B: normed heads, windows in all but every n-th layer, a rotary base for each kind of
    layer."""

    config = GEMMA_3


class TestGemma3Scaled(ArchitectureTests):
    """Gemma 3 4B's language model, stored alone: full layers stretched by 8."""

    config = {**GEMMA_3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}


class TestGemma3RopeParameters(ArchitectureTests):
    """Gemma 3 27B's language model as transformers 5 writes it: scores scaled by hidden size /
    heads, each layer's type, rotary parameters for each type."""

    in_gguf = False  # its readers know the scale of 62 layers only, and no types of layers
    config = {
        **{
            k: v
            for k, v in GEMMA_3.items()
            if k not in ("rope_theta", "rope_local_base_freq", "sliding_window_pattern")
        },
        "query_pre_attn_scalar": 16,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 20_000.0},
            FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0},
        },
    }


class TestGemma3WithVision(ArchitectureTests):
    """Gemma 3 4B, the language model of a checkpoint that also sees."""

    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {k: v for k, v in GEMMA_3.items() if k != "architectures"},
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        "mm_tokens_per_image": 4,
        "image_token_index": 159,
    }

    def test_a_step_is_planned_by_the_sizes_of_the_language_model(self, toy: Toy) -> None:
        hidden, inner = (
            self.config["text_config"][name] for name in ("hidden_size", "intermediate_size")
        )
        [planned] = [item.nbytes for item in toy.plan.memory if item.name == "activations"]
        assert planned == 512 * (8 * hidden + 3 * inner) * 4

    def test_names_as_transformers_wrote_them_for_a_while(
        self, toy: Toy, checkpoint: Path, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        tensors = load_file(checkpoint / "model.safetensors")
        assert any(name.startswith("vision_tower.") for name in tensors)
        new = {
            "language_model.model.": "model.language_model.",
            "vision": "model.vision",
            "multi": "model.multi",
        }
        renamed = {
            re.sub("|".join(map(re.escape, new)), lambda m: new[m[0]], n, count=1): t
            for n, t in tensors.items()
        }
        save_file(renamed, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(self.config))
        [ours], [theirs] = (generate(t, prompts[-1:]) for t in (load_toy(tmp_path), toy))
        torch.testing.assert_close(ours.logits_NV, theirs.logits_NV)


def test_a_gelu_of_gemma_is_its_approximation() -> None:
    """The first configs say "gelu", later ones what was meant."""
    first, later = (
        GemmaConfig.from_json({**GEMMA, "hidden_act": name})
        for name in ("gelu", "gelu_pytorch_tanh")
    )
    assert first == later


def test_fields_that_published_configs_leave_out_are_those_of_transformers() -> None:
    """gemma-3-4b-it's text_config has six fields."""
    from transformers import Gemma3TextConfig

    given: dict[str, Any] = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    whole = {"text_config": given, "vision_config": PUBLISHED}
    ours, theirs = SeeingGemma3Config.from_multimodal(whole), Gemma3TextConfig(**given)
    for name in (
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "sliding_window",
        "query_pre_attn_scalar",
        "tie_word_embeddings",
        "final_logit_softcapping",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert list(ours.layer_types) == theirs.layer_types
    rope: Any = theirs.rope_parameters
    assert (ours.rope.rope_theta, ours.rope.factor) == (1e6, 8.0)
    assert rope[FULL]["rope_theta"] == 1e6
    assert ours.local_rope.rope_theta == rope[SLIDING]["rope_theta"] == 1e4


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "head_dim", "scalar"),
    [(26, 2304, 8, 256, 256), (42, 3584, 16, 256, 256), (46, 4608, 32, 128, 144)],
)
def test_a_gguf_file_of_gemma_2_has_the_published_scale(
    layers: int, hidden: int, heads: int, head_dim: int, scalar: int
) -> None:
    """Files do not store it."""
    sizes = {
        **{name: value for name, value in GEMMA_2.items() if name != "query_pre_attn_scalar"},
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "head_dim": head_dim,
    }
    assert GEMMA_2_GGUF.config is not None
    assert GEMMA_2_GGUF.config(sizes) == {**sizes, "query_pre_attn_scalar": scalar}


def test_a_gguf_file_of_gemma_3_without_a_window_has_none() -> None:
    """rnj-1: full attention in every layer. A config.json without the field has transformers'
    default."""
    config = {
        k: v for k, v in GEMMA_3.items() if k not in ("sliding_window", "sliding_window_pattern")
    }
    assert GEMMA_3_GGUF.config is not None
    assert set(Gemma3Config.from_json(GEMMA_3_GGUF.config(config)).layer_types) == {FULL}
    assert Gemma3Config.from_json(config).attention_spec(0).sliding_window == 4096


@pytest.mark.parametrize(
    ("read", "damage", "named"),
    [
        (GemmaConfig.from_json, {**GEMMA, "hidden_act": "relu"}, "hidden_act"),
        (GemmaConfig.from_json, {**GEMMA, "num_key_value_heads": 0}, "num_key_value_heads"),
        (Gemma2Config.from_json, {**GEMMA_2, "hidden_activation": "gelu"}, "hidden_activation"),
        (Gemma2Config.from_json, {**GEMMA_2, "layer_types": [FULL]}, "layer_types"),
        (
            Gemma2Config.from_json,
            {**GEMMA_2, "layer_types": [FULL, FULL, "linear_attention"]},
            "linear_attention",
        ),
        (
            Gemma3Config.from_json,
            {**GEMMA_3, "attn_logit_softcapping": 50.0},
            "attn_logit_softcapping",
        ),
        (
            Gemma2Config.from_json,
            {**GEMMA_2, "use_bidirectional_attention": True},
            "use_bidirectional_attention",
        ),
        (Gemma3Config.from_json, {**GEMMA_3, "sliding_window": 0}, "sliding_window"),
        (Gemma3Config.from_json, {**GEMMA_3, "rope_parameters": [1]}, "rope_scaling"),
        (
            Gemma3Config.from_json,
            {**GEMMA_3, "rope_parameters": {SLIDING: {"rope_type": "longrope"}}},
            "short_factor has 0",
        ),
        (Gemma2Config.from_json, {**GEMMA_2, "query_pre_attn_scalar": -4}, "query_pre_attn_scalar"),
        (
            Gemma2Config.from_json,
            {**GEMMA_2, "attn_logit_softcapping": 0.0},
            "attn_logit_softcapping",
        ),
        (
            Gemma3Config.from_json,
            {**GEMMA_3, "final_logit_softcapping": -30.0},
            "final_logit_softcapping",
        ),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    read: Any, damage: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(damage)


class TestEmbeddingGemma(EncoderTests):
    """embeddinggemma-300m: Gemma 3 that attends to later tokens, too, half of its window on either
    side."""

    config = {**GEMMA_3, "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    trained = False
