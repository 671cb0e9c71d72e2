"""Mistral Small 3.1 and Ministral 3, images included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inferno.errors import CheckpointError
from inferno.testing import TINY_TEXT, ImageTests
from inferno_mistral.images import processor
from inferno_mistral.vision_config import mistral3

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


class TestMistral3(ImageTests):
    config = CONFIG

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        from transformers.models.pixtral.image_processing_pil_pixtral import (
            PixtralImageProcessorPil,
        )

        patch, size = {"height": 28, "width": 28}, {"longest_edge": 1540}
        made = PixtralImageProcessorPil(patch_size=patch, size=size)
        return {**made(images=list(images), return_tensors="pt")}


class TestMinistral3(TestMistral3):
    """Queries that grow with their index, a projector with biases, gelu, and another base of the
    encoder's rotary angles."""

    config = {
        **CONFIG,
        "text_config": {
            "model_type": "ministral3",
            **TINY_TEXT,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.1,
            },
        },
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
