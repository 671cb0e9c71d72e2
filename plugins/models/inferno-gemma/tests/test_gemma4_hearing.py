"""Gemma 4 with audio, and with images and audio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from gemma4_toy import CONFIG, Gemma4Seeing
from torch import Tensor

from inferno.contracts import AudioModelConfig
from inferno.errors import CheckpointError
from inferno.testing import AudioTests, ImageTests, like_trained, transformers_model
from inferno_gemma.audio4_config import processor
from inferno_gemma.vision4_config import HearingGemma4Config, SpanningGemma4Config, gemma4

pytest.importorskip("PIL")
pytest.importorskip("soundfile")

AUDIO = {
    "model_type": "gemma4_audio",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [16, 8],
    "output_proj_dims": 24,
}
HEARING: dict[str, Any] = {
    **CONFIG,
    "audio_config": AUDIO,
    "audio_token_id": 153,
    "boa_token_id": 154,
    "eoa_token_index": 155,
}


class Gemma4Hearing(Gemma4Seeing):
    config = HEARING

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> Any:
        """With limits of products that some numbers exceed."""
        model = transformers_model(cls.config, cls.head)
        like_trained(model)
        for name, limit in model.named_buffers():
            if name.rpartition(".")[2] in ("input_min", "output_min", "input_max", "output_max"):
                limit.fill_(-1.5 if name.endswith("min") else 2.0)
        return model

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

        seen = [each for each in images if not isinstance(each, np.ndarray)]
        inputs = super().inputs_of(seen, ids) if seen else {}
        if heard := [each for each in images if isinstance(each, np.ndarray)]:
            inputs |= Gemma4AudioFeatureExtractor(feature_size=16)(heard, return_tensors="pt")
        types = [{150: 1, 153: 3}.get(each, 0) for each in ids]
        return {**inputs, "mm_token_type_ids": torch.tensor([types])}


def test_a_model_whose_images_span_hears_nothing() -> None:
    spanning = {**CONFIG["text_config"], "use_bidirectional_attention": "vision"}
    config = gemma4({**HEARING, "text_config": spanning})
    assert isinstance(config, SpanningGemma4Config)
    assert not isinstance(config, AudioModelConfig)


class TestGemma4Hearing(Gemma4Hearing, AudioTests):
    """Gemma 4 E2B with its audio, of more positions than attend to each other, and of fewer;
    products of the encoder are clipped."""

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        given = self.inputs_of([samples_N])
        dtype = next(reference.parameters()).dtype
        output = reference.model.get_audio_features(
            given["input_features"].to(dtype), given["input_features_mask"]
        )
        embeddings: Tensor = output.pooler_output[output.attention_mask]
        return embeddings


class TestGemma4Both(Gemma4Hearing, ImageTests):
    """Gemma 4 E2B with images and audio in a prompt."""

    @classmethod
    def prepared(cls, opened: Any, files: Any) -> Iterator[tuple[Any, Any]]:
        heard = list(islice(TestGemma4Hearing.prepared(opened, files), 2))
        for i, seen in enumerate(super().prepared(opened, files)):
            yield heard[1] if i == 1 else seen


def test_audio_is_between_two_tokens() -> None:
    config = gemma4(HEARING)
    assert isinstance(config, HearingGemma4Config)
    assert config.audio_layout((1, 9, 9)) == [154, None, None, None, 155]


@pytest.mark.parametrize("samples", [161, 3_333, 16_000, 480_000])
def test_audio_has_as_many_positions_as_transformers_says(samples: int) -> None:
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    config = gemma4(HEARING)
    assert isinstance(config, HearingGemma4Config)
    features = processor(config, {})(np.zeros(samples, np.float32))
    theirs: Any = Gemma4Processor.__new__(Gemma4Processor)
    theirs.feature_extractor, theirs.audio_seq_length = Gemma4AudioFeatureExtractor(), 750
    expected = theirs._compute_audio_num_tokens(np.zeros(samples), 16_000)
    assert config.audio_tokens(features.grid) == expected > 0


@pytest.mark.parametrize("samples", [0, 160, 480_001])
def test_audio_that_is_too_short_or_too_long_is_refused(samples: int) -> None:
    config = gemma4(HEARING)
    assert isinstance(config, HearingGemma4Config)
    with pytest.raises(ValueError, match="it hears"):
        processor(config, {})(np.zeros(samples, np.float32))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"attention_context_right": 4}, "attention_context_right"),
        ({"attention_chunk_size": 8}, "attention_chunk_size is 8"),
        ({"subsampling_conv_channels": [16]}, "subsampling_conv_channels"),
        ({"subsampling_conv_channels": [18, 8]}, "18 mel bins"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_bad_config_of_audio_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        gemma4({**HEARING, "audio_config": {**AUDIO, **damage}})
