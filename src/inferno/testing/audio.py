"""Tests that every architecture must pass that hears audio.

Suffixes: N samples, P frames of a spectrogram, W mel bins, M tokens of audio, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from inferno.images.pixels import Picture, PixelFiles
from inferno.images.preparing import AudioPreparer
from inferno.images.seeing import read_pixels
from inferno.images.sound import Samples
from inferno.nn import AudioEncoder
from inferno.plan import Opened
from inferno.testing.images import Asked, ImageTests
from inferno.weights.loading import load_model

_ROUNDED = 3.0
"""How many times as far as the reference's, rounded embeddings may be from exact ones."""


def sound(seed: int, seconds: float, rate: int = 16_000) -> Samples:
    """Return samples of some tones that come and go, and noise, as speech has."""
    rng, time_N = np.random.default_rng(seed), np.arange(int(seconds * rate)) / rate
    samples_N = 0.02 * rng.standard_normal(len(time_N))
    for tone in rng.uniform(100, 3000, 4):
        swell_N = np.sin(2 * np.pi * rng.uniform(1, 5) * time_N + rng.uniform(0, 6)) ** 2
        samples_N += 0.2 * swell_N * np.sin(2 * np.pi * tone * time_N)
    samples: Samples = samples_N.astype(np.float32)
    return samples


class AudioTests(ImageTests):
    """Set `config` to a toy `config.json` of a whole model with its `text_config` and
    `audio_config`. Prompts have token ids below 140. Override `inputs_of`: what the reference is
    given for audio, arrays of samples. Weights are like trained ones."""

    head: ClassVar[str] = "AutoModelForMultimodalLM"
    seconds: ClassVar[Sequence[float]] = (0.7, 1.0, 0.33)
    """Of the pieces of audio."""
    sizes = ((1, 1),) * 3  # as many as `seconds`
    off: ClassVar[Sequence[str]] = ()
    """How notes begin on what else the model reads, but not here."""

    @classmethod
    def prepared(cls, opened: Opened, files: PixelFiles) -> Iterator[tuple[Any, Picture]]:
        preparer = AudioPreparer.of(opened)
        for seed, seconds in enumerate([*cls.seconds, cls.seconds[0]]):
            samples_N = sound(seed, seconds, preparer.rate)
            picture = files.adopt(preparer.prepare(samples_N, files.folder))
            assert picture is not None, "it was just written"
            yield samples_N, picture

    def embeddings(self, reference: Any, samples_N: Samples) -> Tensor:
        """Return transformers' embeddings of audio, (M, D), in the reference's dtype."""
        raise NotImplementedError

    def test_the_plan_says_how_images_are_seen(self, checkpoint: Path) -> None:
        with self.opened(checkpoint) as opened:
            plan, sees = opened.plan, opened.parts.architecture.images is not None
        assert (plan.images is not None) == sees and plan.audio is not None
        assert plan.audio.num_parameters > 0 and plan.audio.rate == 16_000
        assert {"audio encoder", "audio"} <= {item.name for item in plan.memory}
        off = [note.partition(":")[0] for note in plan.notes if "not loaded" in note]
        assert off == list(self.off)

    def test_rounded_embeddings_are_as_near_as_the_reference_s(
        self, reference: Any, checkpoint: Path, pictures: Sequence[tuple[Any, Picture]]
    ) -> None:
        with self.opened(checkpoint, dtype="bfloat16") as opened:
            model = load_model(opened)
        [encoder] = [each for each in model.modules() if isinstance(each, AudioEncoder)]
        for samples_N, picture in pictures:
            [part] = picture.at(0)
            frames_PW = read_pixels(part, encoder.patches(part.grid))
            assert frames_PW is not None
            with torch.inference_mode():
                ours_MD = encoder(frames_PW, part.grid).float()
                exact_MD = self.embeddings(reference, samples_N)
                rounded = reference.to(torch.bfloat16)
                try:
                    theirs_MD = self.embeddings(rounded, samples_N).float()
                finally:
                    reference.float()
            assert ours_MD.shape == exact_MD.shape
            far = (ours_MD - exact_MD).norm(), (theirs_MD - exact_MD).norm()
            assert far[0] <= _ROUNDED * far[1]

    def test_a_prompt_of_audio_says_what_it_is_heard_as(self, asked: Sequence[Asked]) -> None:
        parts = asked[2].ids.images  # type: ignore[attr-defined]
        assert [part.medium for part in parts] == ["audio"] * 3
