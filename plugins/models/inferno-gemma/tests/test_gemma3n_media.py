"""Gemma 3n with images, with audio, and with both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from gemma3n_toy import CONFIG, HEARD, PIXELS, TOKENS, Gemma3n
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import AudioTests, ImageTests
from inferno_gemma.audio3n_config import processor
from inferno_gemma.config3n_media import MultimodalGemma3nConfig, gemma3n
from inferno_gemma.images import processor3n

pytest.importorskip("PIL")
pytest.importorskip("soundfile")


class TestGemma3nSeeing(Gemma3n, ImageTests):
    """Gemma 3n with its images: tokens with embeddings of their encoder, several states of each."""


class TestGemma3nHearing(Gemma3n, AudioTests):
    """Gemma 3n with its audio, which has a fixed number of positions: those after its end stand for
    silence."""

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        given = self.inputs_of([samples_N])
        dtype = next(reference.parameters()).dtype
        model = reference.model
        output = model.get_audio_features(
            given["input_features"].to(dtype), ~given["input_features_mask"].bool()
        )
        heard_LO = output.pooler_output[0]
        silence_1O = model.embed_audio(input_ids=torch.tensor([model.vocab_size - 1]))
        return torch.cat([heard_LO, silence_1O.expand(HEARD - len(heard_LO), -1)]).float()


class TestBoth(Gemma3n, ImageTests):
    """Gemma 3n with images and audio in one prompt."""

    @classmethod
    def prepared(cls, opened: Any, files: Any) -> Iterator[Any]:
        heard = list(islice(TestGemma3nHearing.prepared(opened, files), 2))
        for i, seen in enumerate(super().prepared(opened, files)):
            yield heard[1] if i == 1 else seen


@pytest.mark.parametrize("samples", [513, 3_333, 16_000, 30_719])
def test_audio_has_at_most_as_many_positions_as_are_given_for_it(samples: int) -> None:
    """As many as transformers computes frames for, each sixteenth."""
    config = _config()
    features = processor(config, {})(np.zeros(samples, np.float32))
    assert 1 <= -(-features.grid[2] // 16) <= config.audio_tokens(features.grid) == HEARD


@pytest.mark.parametrize("samples", [0, 512, 30_721])
def test_audio_that_is_too_short_or_too_long_is_refused(samples: int) -> None:
    with pytest.raises(ValueError, match="it hears"):
        processor(_config(), {})(np.zeros(samples, np.float32))


def test_published_models_hear_half_a_minute() -> None:
    config = MultimodalGemma3nConfig()
    assert config.audio_seconds == 30 and config.hearing.tokens == 188
    assert config.image_patch[0] == 48 and config.image_count == 256


def test_text_around_images_and_audio_is_that_of_transformers() -> None:
    from transformers.models.gemma3n.processing_gemma3n import Gemma3nProcessor

    class Names:
        audio_token_id, image_token_id = 0, 1
        boa_token, eoa_token, audio_token = "<start_of_audio>", "<end_of_audio>", "<audio>"
        boi_token, eoi_token, image_token = "<start_of_image>", "<end_of_image>", "<image>"

    theirs: Any = Gemma3nProcessor.__new__(Gemma3nProcessor)
    with pytest.raises(Exception, match="."):  # no tokenizer: what it writes is set before
        theirs.__init__(None, None, Names(), audio_seq_length=1, image_seq_length=1)
    config = _config()
    for (place, text), token, theirs_text in (
        (config.image_text, "<image>", theirs.full_image_sequence),
        (config.audio_text, "<audio>", theirs.full_audio_sequence),
    ):
        assert text.replace(place, token) == theirs_text


@pytest.mark.parametrize(
    "size",
    [
        {"height": 96, "width": 128},
        {"height": 100, "width": 100},
        {"height": 0, "width": 0},
        {"height": -64, "width": -64},
        {"height": 832, "width": 832},  # no memory is planned for more than 768
        {"height": "64", "width": "64"},
        {"height": None},
        768,
        [64, 64],
    ],
)
def test_images_that_the_encoder_does_not_read_are_refused(size: Any) -> None:
    with pytest.raises(CheckpointError, match="a square"):
        processor3n(_config(), {"size": size}, TOKENS)
    processor3n(_config(), {"size": {"height": PIXELS, "width": PIXELS}}, TOKENS)


@pytest.mark.parametrize(
    ("part", "damage", "named"),
    [
        ("audio_config", {"conf_attention_context_right": 4}, "conf_attention_context_right"),
        ("audio_config", {"sscp_conv_channel_size": [16]}, "sscp_conv_channel_size"),
        ("audio_config", {"sscp_conv_stride_size": [[2, 2], [1, 2]]}, "sscp_conv_stride_size"),
        ("audio_config", {"hidden_size": 36}, "hidden_size 36"),
        ("audio_config", {"conf_num_hidden_layers": 10_001}, "conf_num_hidden_layers"),
        ("audio_config", {"input_feat_size": 1_000_000}, "input_feat_size"),
        ("vision_config", {"model_args": {"channel_multiplier": 1e308}}, "channel_multiplier"),
        ("audio_config", {"vocab_size": 9}, "token 153"),
        ("vision_config", {"architecture": "mobilenetv5_base"}, "architecture"),
        ("vision_config", {"model_args": {"depth": 3}}, "model_args has depth"),
        ("vision_config", {"model_args": None}, "16 x 16"),
        ("vision_config", {"vocab_offset": 146}, "token 145"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    part: str, damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        gemma3n({**CONFIG, part: {**CONFIG[part], **damage}})


def _config() -> MultimodalGemma3nConfig:
    config = gemma3n(CONFIG)
    assert isinstance(config, MultimodalGemma3nConfig)
    return config
