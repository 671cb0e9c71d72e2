"""Mistral Small 3.1 and Ministral 3, images included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import TINY_TEXT, EncoderFileTests, ImageTests, SeeingToy
from inferno_mistral.images import processor
from inferno_mistral.vision_config import mistral3
from inferno_mistral.vision_gguf import PIXTRAL

pytest.importorskip("PIL")

CONFIG: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": {"model_type": "mistral", **TINY_TEXT, "sliding_window": None},
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": 112,
        "hidden_act": "silu",
    },
    "image_token_index": 150,
    "spatial_merge_size": 2,
}
"""Rows of an image end with the tokens 152, the image with 153."""


MINISTRAL3 = {
    "model_type": "ministral3",
    **TINY_TEXT,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
    },
}
"""Its queries grow with their index."""


class Mistral3(SeeingToy):
    config = CONFIG

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        from transformers.models.pixtral.image_processing_pil_pixtral import (
            PixtralImageProcessorPil,
        )

        patch, size = {"height": 28, "width": 28}, {"longest_edge": 1540}
        made = PixtralImageProcessorPil(patch_size=patch, size=size)
        return {**made(images=list(images), return_tensors="pt")}


class TestMistral3(Mistral3, ImageTests):
    pass


class TestFiles(Mistral3, EncoderFileTests):
    """Mistral Small 3.1 in two GGUF files, of the text model and of the encoder."""

    config = {**CONFIG, "vision_config": {**CONFIG["vision_config"], "image_size": 1540}}
    text = "mistral3"
    tokens = {150: "[IMG]", 152: "[IMG_BREAK]", 153: "[IMG_END]"}
    looks = {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    unread = frozenset({"v.token_embd.img_break"})
    processor = {"size": {"longest_edge": 1540}}

    def keys(self, vision: Any) -> Mapping[str, Any]:
        acts = {f"use_{vision.hidden_act}": True}
        return {"projector_type": "pixtral", "vision.spatial_merge_size": 2, **acts}

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        if name.endswith("embed_tokens.weight"):
            yield "v.token_embd.img_break", tensor[152]
        elif name.startswith("vision_tower.") and name.endswith(("q_proj.weight", "k_proj.weight")):
            # Pairs (i, i + half) of both heads become neighbours.
            halves = tensor.view(2, 2, -1, tensor.shape[-1])
            yield name, halves.transpose(1, 2).reshape(tensor.shape)
        elif name.startswith(("vision_tower.", "multi_modal_projector.")):
            yield name, tensor


class TestFilesOfMinistral3(TestFiles):
    """Ministral 3 in two: queries that grow with their index, a projector with biases, gelu."""

    config = {
        **CONFIG,
        "text_config": MINISTRAL3,
        "vision_config": {
            **CONFIG["vision_config"],
            "hidden_act": "gelu",
            "image_size": 1540,
        },
        "multimodal_projector_bias": True,
    }
    gguf_fields = {"query_beta": 0.1}


class TestMinistral3(TestMistral3):
    """Queries that grow with their index, a projector with biases, gelu, and another base of the
    encoder's rotary angles."""

    config = {
        **CONFIG,
        "text_config": MINISTRAL3,
        "vision_config": {
            **CONFIG["vision_config"],
            "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        },
        "multimodal_projector_bias": True,
    }


def flat(damage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as the model reads it."""
    return {**CONFIG, **CONFIG["text_config"], **damage}


def test_a_text_model_that_files_call_a_llama_is_a_mistral() -> None:
    assert "llama" in PIXTRAL.texts
    text = {**CONFIG["text_config"], "model_type": "llama"}
    fields = {"layers": 2, "heads": 2, "hidden_size": 32, "merge": 2, "image_token_id": 10}
    config = PIXTRAL.config(text, {**fields, "intermediate_size": 48, "patch_size": 14})
    assert config["text_config"]["model_type"] == "mistral"
    read = mistral3({**config, **config["text_config"]})
    assert (read.vision.hidden_act, read.vision.unit) == ("gelu", 4)


def test_rows_end_with_tokens_of_text() -> None:
    config = mistral3(flat({}))
    two_by_three = config.image_layout((1, 4, 6))
    assert two_by_three == [None, None, None, 152, None, None, None, 153]
    assert config.image_tokens((1, 4, 6)) == two_by_three.count(None)


@pytest.mark.parametrize("most", [1, 3, 100, 4096])
@pytest.mark.parametrize("size", [(1, 1), (28, 29), (333, 77), (1541, 1540), (4000, 2000)])
def test_no_image_takes_more_tokens_than_it_may(size: tuple[int, int], most: int) -> None:
    from PIL import Image

    config = mistral3(flat({}))
    pixels = processor(config, {}, most)(Image.new("RGB", size, (9, 99, 200)))
    count = config.image_tokens(pixels.grid)
    assert 1 <= count == config.image_layout(pixels.grid).count(None) <= most
    assert pixels.values.shape == (count * 4, 3 * 14**2)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"vision_feature_layer": -2}, "vision_feature_layer"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act"),
        ({"vision_config": {"hidden_act": "relu"}}, "hidden_act"),
        ({"vision_config": {"hidden_size": 100}}, "multiple of 4"),
        ({"spatial_merge_size": 0}, "spatial_merge_size"),
        ({"model_type": "bloom"}, "model_type is 'bloom'"),
    ],
)
def test_what_is_not_computed_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        mistral3(flat(damage))
