"""The common part of configs of Gemma 3n and 4 with audio, and what makes their spectrograms, by
transformers' own classes. Imports no torch.

Suffixes: N samples, P frames, W mel bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from inferno.configs import HEARING
from inferno.contracts import Grid, Pixels

RATE, HOP = 16_000, 160
"""Samples a second, and between two frames."""
LOOKS = (
    "min_frequency",
    "max_frequency",
    "preemphasis",
    "preemphasis_htk_flavor",
    "fft_overdrive",
    "input_scale_factor",
    "mel_floor",
    "per_bin_mean",
    "per_bin_stddev",
)
"""What a `preprocessor_config.json` may say of spectrograms."""


class Hears:
    """The part of `contracts.AudioModelConfig` that is the same in all of these models."""

    __slots__ = ()

    @property
    def audio_encoder(self) -> str:
        return HEARING

    @property
    def audio_rate(self) -> int:
        return RATE


class HearsBetween(Hears):
    """The same for models with a token before audio and one behind it
    (`contracts.AudioLayoutConfig`). Subclasses have the fields of these tokens."""

    __slots__ = ()

    boa_token_id: int
    eoa_token_id: int

    def audio_tokens(self, grid: Grid) -> int:
        raise NotImplementedError

    def audio_layout(self, grid: Grid) -> Sequence[int | None]:
        return [self.boa_token_id, *[None] * self.audio_tokens(grid), self.eoa_token_id]


@frozen
class MelFrames:
    """Makes spectrograms by transformers' own class, without the frames that it masks. The others
    end before the audio does; in Gemma 3n they only begin before its end."""

    made: Any
    longest: int = field(kw_only=True)
    """Most samples."""
    shortest: int = field(kw_only=True)

    def __call__(self, samples_N: Any) -> Pixels:
        if len(samples_N) > self.longest:
            raise ValueError(f"it hears {self.longest / RATE:g} s")
        if len(samples_N) < self.shortest:
            raise ValueError(f"it hears {1000 * self.shortest / RATE:.0f} ms or more")
        features = self.made([samples_N], return_tensors="np")
        values_PW = features["input_features"][0][features["input_features_mask"][0]]
        return Pixels(values_PW, (1, len(values_PW), len(values_PW)))
