"""Llama 4 with images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor

from inferno.errors import CheckpointError, OptionError
from inferno.testing import TINY_TEXT, EncoderFileTests, ImageTests, SeeingToy
from inferno_llama4.images import best_canvas, canvases, processor
from inferno_llama4.vision_config import SeeingLlama4Config

pytest.importorskip("PIL")

CONFIG: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        **TINY_TEXT,
        "num_hidden_layers": 3,
        "no_rope_layers": [1, 0, 1],
        "attention_chunk_size": 32,
        "floor_scale": 24,
        "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 4,
        "pad_token_id": 0,
    },
    "vision_config": {
        "model_type": "llama4_vision_model",
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 4,
        "image_size": 32,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 48,
        "projector_output_dim": 48,
        "vision_output_dim": 48,
        "rope_theta": 100.0,
    },
    "boi_token_index": 141,
    "eoi_token_index": 142,
    "image_token_index": 153,
}


def flat(damage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as the model reads it."""
    return {**CONFIG, **CONFIG["text_config"], **damage}


class Llama4Seeing(SeeingToy):
    config = CONFIG
    sizes = ((64, 30), (20, 64), (30, 25))

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        import torch

        prepare = processor(SeeingLlama4Config.from_json(flat({})), {}, 4096)
        tiles = []
        for image in images:
            patches = torch.from_numpy(prepare(image).values)
            tiles.append(patches.view(-1, 8, 8, 3, 4, 4).permute(0, 3, 1, 4, 2, 5))
        return {"pixel_values": torch.cat(tiles).reshape(-1, 3, 32, 32)}


class TestLlama4Seeing(Llama4Seeing, ImageTests):
    """Llama 4 with its images: one tile, and several with the whole image."""


class TestFiles(Llama4Seeing, EncoderFileTests):
    """Llama 4 in two GGUF files, of the text model and of the encoder."""

    config = {
        **CONFIG,
        "text_config": {
            **CONFIG["text_config"],
            "no_rope_layers": [1, 1, 1],
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
        },
        "vision_config": {**CONFIG["vision_config"], "rope_theta": 10_000.0},
    }
    text = "llama4"
    tokens = {141: "<|image_start|>", 142: "<|image_end|>", 153: "<|patch|>"}
    looks = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

    def keys(self, vision: Any) -> Mapping[str, Any]:
        scale = {"vision.projector.scale_factor": int(1 / vision.pixel_shuffle_ratio)}
        return {"projector_type": "llama4", "use_gelu": True, **scale}

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        if name == "multi_modal_projector.linear_1.weight":
            yield "mm.model.fc.weight", tensor
        elif name == "vision_model.positional_embedding_vlm":
            yield f"{name}.weight", tensor
        elif name.startswith("vision_model."):
            yield name, tensor


TOKENS = {
    "<|image_start|>": 141,
    "<|tile_x_separator|>": 145,
    "<|tile_y_separator|>": 146,
    "<|image|>": 151,
    "<|patch|>": None,
    "<|image_end|>": 142,
}


@pytest.mark.parametrize("tiles", [(1, 1), (1, 2), (3, 1), (2, 3), (4, 4)])
def test_what_is_in_the_place_of_an_image_is_what_transformers_writes(
    tiles: tuple[int, int],
) -> None:
    from transformers.models.llama4.processing_llama4 import Llama4Processor

    config = SeeingLlama4Config.from_json(flat({}))
    written = Llama4Processor._prompt_split_image(cast(Any, None), tiles, 16)
    grid = (1, 8 * tiles[0], 8 * tiles[1])
    layout = config.image_layout(grid)
    assert layout == [TOKENS[each] for each in re.findall(r"<\|.+?\|>", written)]
    assert config.image_tokens(grid) == layout.count(None)
    assert config.image_text == ("<|image|>", "<|patch|>")


def test_the_published_tokenizers_tokens_have_their_numbers() -> None:
    """Llama 4's special tokens begin at 200 000; those of images are numbers 80 to 92."""
    published = SeeingLlama4Config.from_json({"vision_config": {"vision_output_dim": 4096, **WIDE}})
    begin, x, image, y, end = 200_080, 200_084, 200_090, 200_085, 200_081
    layout = [each for each in published.image_layout((1, 24, 48)) if each is not None]
    assert layout == [begin, x, y, image, end] and published.image_token_id == 200_092
    assert published.image_tokens((1, 24, 48)) == 3 * 144


WIDE = {"hidden_size": 1408, "image_size": 336}
"""The published encoder's."""


@pytest.mark.parametrize(
    ("size", "largest", "canvas"),
    [
        ((336, 336), False, (336, 336)),
        ((10, 10), False, (336, 336)),
        ((10, 10), True, (1344, 1344)),
        ((200, 300), False, (336, 336)),
        ((800, 500), False, (1008, 672)),
        ((4000, 4000), False, (1344, 1344)),
        ((100, 5000), False, (336, 5040)),
        ((5000, 100), False, (5040, 336)),
        ((700, 300), False, (1008, 336)),
    ],
)
def test_an_image_is_put_on_the_canvas_that_changes_it_least(
    size: tuple[int, int], largest: bool, canvas: tuple[int, int]
) -> None:
    """As transformers' processor does it, which gave these."""
    assert best_canvas(size, canvases(16, 336), largest) == canvas


def test_colours_are_rounded_as_in_training() -> None:
    """A tile of every value, which nothing scales."""
    import torch
    from PIL import Image

    every = np.arange(1024, dtype=np.uint16).astype(np.uint8).reshape(32, 32)
    image = Image.fromarray(np.stack([every, every[::-1], every.T], -1))
    prepare = processor(SeeingLlama4Config.from_json(flat({})), {"image_std": [0.3] * 3}, 4096)
    pixels = prepare(image)
    assert pixels.grid == (1, 8, 8) and pixels.values.shape == (64, 48)
    tile = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).to(torch.bfloat16)
    deviation = torch.tensor(0.3, dtype=torch.bfloat16)
    wanted = (tile * (1 / 255)).sub(0.5).div(deviation).float()
    colours = torch.from_numpy(pixels.values).view(8, 8, 3, 4, 4).permute(2, 0, 3, 1, 4)
    assert torch.equal(colours.reshape(3, 32, 32), wanted)


@pytest.mark.parametrize("most", [16, 47, 48, 100, 4096])
@pytest.mark.parametrize("size", [(1, 1), (31, 33), (333, 77), (641, 640), (3000, 20)])
def test_no_image_takes_more_tokens_than_it_may(size: tuple[int, int], most: int) -> None:
    from PIL import Image

    config = SeeingLlama4Config.from_json(flat({}))
    pixels = processor(config, {}, most)(Image.new("RGB", size, (9, 99, 200)))
    count = config.image_tokens(pixels.grid)
    assert 16 <= count == config.image_layout(pixels.grid).count(None) <= most
    assert pixels.values.shape == (count * 4, 3 * 4**2)


def test_limits_below_a_tile_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 16 tokens") as refused:
        processor(SeeingLlama4Config.from_json(flat({})), {}, 15)
    assert "--max-image-tokens" in refused.value.remedy


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"num_channels": 1}, "num_channels"),
        ({"hidden_size": 36}, "multiple of 4"),
        ({"patch_size": 5}, "patches of 5"),
        ({"patch_size": 0}, "patch_size"),
        ({"pixel_shuffle_ratio": 0.0}, "pixel_shuffle_ratio"),
        ({"pixel_shuffle_ratio": 0.3}, "evenly|pixel_shuffle_ratio"),
        ({"pixel_shuffle_ratio": 1e-9}, "evenly|pixel_shuffle_ratio"),
        ({"intermediate_size": 64}, "reads 64 numbers"),
        ({"vision_output_dim": 32}, "vision_output_dim"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"multi_modal_projector_bias": True}, "multi_modal_projector_bias"),
    ],
)
def test_an_encoder_that_is_not_computed_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    vision = {**CONFIG["vision_config"], **damage}
    with pytest.raises(CheckpointError, match=named):
        SeeingLlama4Config.from_json(flat({"vision_config": vision}))


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(CheckpointError, match="tokens up to 165 of 160"):
        SeeingLlama4Config.from_json(flat({"boi_token_index": 155}))
