"""Gemma 4 12B with images, with audio, and with both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from gemma4_toy import CONFIG as OF_GEMMA4
from torch import Tensor

from inferno.contracts import AudioModelConfig, ImageSpanConfig
from inferno.errors import CheckpointError
from inferno.testing import AudioTests, ImageTests, SeeingToy
from inferno_gemma.images import processor4_unified
from inferno_gemma.unified_config import processor, unified

pytest.importorskip("PIL")
pytest.importorskip("soundfile")

TOKENS = 16
CONFIG: dict[str, Any] = {
    **OF_GEMMA4,
    "architectures": ["Gemma4UnifiedForConditionalGeneration"],
    "model_type": "gemma4_unified",
    "text_config": {
        **{k: v for k, v in OF_GEMMA4["text_config"].items() if "per_layer" not in k},
        "model_type": "gemma4_unified_text",
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "vision_config": {
        "model_type": "gemma4_unified_vision",
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "mm_embed_dim": 32,
        "mm_posemb_size": 16,
        "output_proj_dims": 32,
    },
    "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 640},
    "audio_token_id": 153,
    "boa_token_id": 154,
    "eoa_token_index": 155,
}


class Unified(SeeingToy):
    head = "AutoModelForMultimodalLM"
    config = CONFIG

    def opened(self, checkpoint: Any, native: bool = False, **more: Any) -> Any:
        limits = {"max_image_tokens": TOKENS} if "max_image_tokens" not in more else {}
        return super().opened(checkpoint, native, **limits, **more)

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        """As transformers' processors make them, of which only the numbers of tokens differ."""
        from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (
            Gemma4UnifiedAudioFeatureExtractor,
        )

        inputs: dict[str, Any] = {}
        prepare = processor4_unified(unified(self.config), {}, TOKENS)
        pixels, places = [], []
        for image in (each for each in images if not isinstance(each, np.ndarray)):
            patches = prepare(image)
            rows, columns = np.indices(patches.grid[1:]).reshape(2, -1)
            missing = TOKENS - len(patches.values)
            pixels.append(np.pad(patches.values, [(0, missing), (0, 0)]))
            place = np.stack([columns, rows], -1)
            places.append(np.pad(place, [(0, missing), (0, 0)], constant_values=-1))
        if pixels:
            inputs["pixel_values"] = torch.from_numpy(np.stack(pixels))
            inputs["image_position_ids"] = torch.from_numpy(np.stack(places))
        if heard := [each for each in images if isinstance(each, np.ndarray)]:
            made = Gemma4UnifiedAudioFeatureExtractor()(heard, return_tensors="pt")
            inputs |= {name: made[name] for name in ("input_features", "input_features_mask")}
            inputs["input_features_mask"] = inputs["input_features_mask"].bool()
        types = [{150: 1, 153: 3}.get(each, 0) for each in ids]
        return {**inputs, "mm_token_type_ids": torch.tensor([types])}


class TestUnifiedSeeing(Unified, ImageTests):
    """Gemma 4 12B with its images: tokens of an image attend to each other in all layers, keys of
    full layers are values, and pixels are read without an encoder."""


class TestUnifiedHearing(Unified, AudioTests):
    """Gemma 4 12B with its audio: samples are read without an encoder."""

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        given = self.inputs_of([samples_N])
        dtype = next(reference.parameters()).dtype
        model = reference.model
        made = model.get_audio_features(
            given["input_features"].to(dtype), given["input_features_mask"]
        )
        heard_LO: Tensor = made.pooler_output[0].float()
        return heard_LO


class TestUnifiedBoth(Unified, ImageTests):
    """Gemma 4 12B with images and audio in one prompt."""

    @classmethod
    def prepared(cls, opened: Any, files: Any) -> Iterator[Any]:
        heard = list(islice(TestUnifiedHearing.prepared(opened, files), 2))
        for i, seen in enumerate(super().prepared(opened, files)):
            yield heard[1] if i == 1 else seen


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("hears", [False, True])
def test_the_config_says_whether_images_span_and_whether_it_hears(spans: bool, hears: bool) -> None:
    text = {**CONFIG["text_config"], "use_bidirectional_attention": "vision" if spans else None}
    audio = CONFIG["audio_config"] if hears else None
    config = unified({**CONFIG, "text_config": text, "audio_config": audio})
    assert isinstance(config, ImageSpanConfig) == spans
    assert isinstance(config, AudioModelConfig) == hears


def test_images_are_cut_as_transformers_merges_patches() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import convert_image_to_patches

    drawn = np.random.default_rng(0).random((3, 16, 24), np.float32)
    whole = convert_image_to_patches(drawn, 8)
    small = convert_image_to_patches(drawn, 4).reshape(2, 2, 3, 2, 4, 4, 3)
    merged = small.transpose(0, 2, 1, 4, 3, 5, 6).reshape(6, -1)
    np.testing.assert_array_equal(whole, merged)


@pytest.mark.parametrize("samples", [0, 480_001])
def test_audio_that_is_not_there_or_too_long_is_refused(samples: int) -> None:
    with pytest.raises(ValueError, match="hear"):
        processor(unified(CONFIG), {})(np.zeros(samples, np.float32))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"vision_config": None}, "vision_config is missing"),
        ({"vision_config": {"patch_size": 0}}, "patch_size"),
        ({"vision_config": {"output_proj_dims": 3}}, "output_proj_dims"),
        ({"audio_config": {"audio_embed_dim": 0}}, "audio_embed_dim"),
        ({"eoa_token_index": 160}, "eoa_token_id is 160"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        unified({**CONFIG, **damage})


@pytest.mark.parametrize("tokens", [-5, "70", 1.5, [70]])
def test_a_bad_number_of_tokens_of_images_is_an_error(tokens: Any) -> None:
    with pytest.raises(CheckpointError, match="max_soft_tokens"):
        processor4_unified(unified(CONFIG), {"max_soft_tokens": tokens}, TOKENS)
