"""What makes spectrograms for Gemma 3n and 4, by transformers' own classes. Imports no torch.

Suffixes: N samples, P frames, W mel bins.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from inferno.contracts import Pixels

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


@frozen
class MelFrames:
    """Makes spectrograms by transformers' own class, and sends the frames that it does not mask:
    those whose samples, or, of Gemma 3n, whose first samples are there."""

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
