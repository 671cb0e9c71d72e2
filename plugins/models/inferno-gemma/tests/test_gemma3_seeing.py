"""Gemma 3 with images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from inferno.configs import FULL, SLIDING
from inferno.errors import CheckpointError, OptionError
from inferno.testing import (
    TINY_TEXT,
    EncoderFileTests,
    ImageTests,
    SeeingToy,
    load_toy,
    transformers_model,
)
from inferno_gemma.images import processor
from inferno_gemma.vision_config import SeeingGemma3Config
from inferno_gemma.vision_gguf import GEMMA3_ENCODER

pytest.importorskip("PIL")

CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        **TINY_TEXT,
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
        "query_pre_attn_scalar": 16,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 4,
        "image_size": 32,
        "vision_use_head": False,
    },
    "mm_tokens_per_image": 16,
    "image_token_index": 150,
    "tie_word_embeddings": False,  # else such a toy says its last token again, whatever it sees
}


class Gemma3Seeing(SeeingToy):
    config = CONFIG
    span = 16

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        import torch
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        made = Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, do_pan_and_scan=False)
        pixels = made(images=list(images), return_tensors="pt")["pixel_values"]
        types = torch.tensor([[int(each == 150) for each in ids]])
        return {"pixel_values": pixels, "token_type_ids": types}


class TestGemma3Seeing(Gemma3Seeing, ImageTests):
    """Gemma 3 4B with its images, whose tokens attend to each other; the window is longer than an
    image."""


class TestFiles(Gemma3Seeing, EncoderFileTests):
    """Gemma 3 4B in two GGUF files, of the text model and of the encoder."""

    config = {
        **CONFIG,
        "text_config": {
            **CONFIG["text_config"],
            "sliding_window_pattern": 3,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
        },
    }
    text = "gemma3"
    gguf_fields = {"sliding_window_pattern": 3, "rope_local_base_freq": 10_000.0}
    unsaid = frozenset({"query_pre_attn_scalar"})  # derived from the head's width, which is as much
    tokens = {150: "<image_soft_token>"}
    looks = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

    def keys(self, vision: Any) -> Mapping[str, Any]:
        return {"projector_type": "gemma3", "use_gelu": True, "vision.projector.scale_factor": 2}

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        if name.endswith("mm_input_projection_weight"):
            yield "mm.input_projection.weight", tensor
        elif name.endswith("mm_soft_emb_norm.weight"):
            yield "mm.soft_emb_norm.weight", tensor + 1
        elif name.startswith("vision_tower."):  # as published checkpoints have it
            yield name.replace("vision_tower.", "vision_tower.vision_model."), tensor


def test_a_file_without_a_row_for_images_has_another_token_in_their_places() -> None:
    """Converted from SentencePiece's vocabulary, as many are."""
    text = {**CONFIG["text_config"], "vocab_size": 140}
    vision = {
        "image_size": 896,
        "patch_size": 14,
        "hidden_size": 32,
        "layers": 1,
        "heads": 2,
        "scale": 4,
    }
    config = GEMMA3_ENCODER.config(text, {**vision, "intermediate_size": 48, "spare": 104})
    read = SeeingGemma3Config.from_multimodal(config)
    assert (read.image_token_id, read.vision.tokens) == (104, 256)
    assert read.image_text[1] == "\n\n<start_of_image><unused98><end_of_image>\n\n"


@pytest.mark.slow
class TestGemma3OfSmallWindow(TestGemma3Seeing):
    """A window shorter than an image."""

    config = {**CONFIG, "text_config": {**CONFIG["text_config"], "sliding_window": 12}}


@pytest.mark.parametrize("limit", [{"max_num_batched_tokens": 12}, {"max_image_tokens": 12}])
def test_steps_that_no_image_fits_into_are_refused(limit: dict[str, Any], tmp_path: Path) -> None:
    reference: Any = transformers_model(CONFIG, "AutoModelForImageTextToText")
    reference.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="an image has 16 tokens"):
        load_toy(tmp_path, max_num_seqs=4, **limit)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"mm_tokens_per_image": 15}, "mm_tokens_per_image is 15"),
        ({"mm_tokens_per_image": 9}, "mm_tokens_per_image is 9"),
        ({"vision_config": {**CONFIG["vision_config"], "hidden_act": "relu"}}, "hidden_act"),
        ({"vision_config": {**CONFIG["vision_config"], "hidden_size": 33}}, "hidden_size 33"),
        ({"vision_config": {**CONFIG["vision_config"], "patch_size": 0}}, "patch_size"),
        ({"image_token_index": 160}, "image_token_id is 160"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        SeeingGemma3Config.from_multimodal({**CONFIG, **damage})


def test_an_image_is_a_square_whatever_its_sides() -> None:
    from PIL import Image

    config = SeeingGemma3Config.from_multimodal(CONFIG)
    prepare = processor(config, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, 16)
    pixels = prepare(Image.new("RGB", (200, 10), (255, 0, 0)))
    assert pixels.grid == (1, 8, 8) and pixels.values.shape == (64, 48)
    red, green = pixels.values[:, :16], pixels.values[:, 16:32]
    np.testing.assert_allclose(red, 1.0)
    np.testing.assert_allclose(green, -1.0)
    assert config.image_tokens(pixels.grid) == 16


def test_a_template_s_place_for_an_image_becomes_what_the_model_was_trained_with() -> None:
    """As transformers' processor writes it, before the text is encoded."""
    config = SeeingGemma3Config.from_multimodal(CONFIG)
    marker, written = config.image_text
    text = "<start_of_turn>user\n<start_of_image>What is it?".replace(marker, written)
    assert text == (
        "<start_of_turn>user\n\n\n<start_of_image><image_soft_token><end_of_image>\n\nWhat is it?"
    )
