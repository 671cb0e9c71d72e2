"""The config of Gemma 4's encoder of audio, and what makes its spectrograms. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt

from inferno.configs import check_known, check_positive, read_config, transformers_processor
from inferno.errors import CheckpointError
from inferno_gemma.spectrograms import HOP, LOOKS, RATE, MelFrames

FRAME = 320
"""Samples of a frame."""
__all__ = ["RATE", "SECONDS", "TOKENS", "AudioConfig", "processor"]

SECONDS, TOKENS = 30, 750
"""The longest audio, as published, and the positions that it takes: what is longer, transformers
cuts."""


@frozen(kw_only=True)
class AudioConfig:
    """`audio_config`. Fields that configs omit have transformers' defaults."""

    hidden_size: int = 1024
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    subsampling_conv_channels: tuple[int, ...] = (128, 32)
    conv_kernel_size: int = 5
    residual_weight: float = 0.5
    attention_chunk_size: int = 12
    attention_context_left: int = 13
    attention_logit_cap: float = field(default=50.0, validator=gt(0))
    use_clipped_linears: bool = True
    rms_norm_eps: float = 1e-6
    gradient_clipping: float = field(default=1e10, validator=gt(0))
    output_proj_dims: int = 1536

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `audio_config`. Raises CheckpointError."""
        check_known(config, "hidden_act", "silu")
        check_known(config, "attention_context_right", 0)
        given, name = dict(config), "subsampling_conv_channels"
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
        read = read_config(cls, given)
        sizes = {name: getattr(read, name) for name in attrs.fields_dict(cls)}
        check_positive(**{n: size for n, size in sizes.items() if type(size) is int})
        channels = read.subsampling_conv_channels
        if len(channels) != 2 or any(type(n) is not int or n < 1 for n in channels):
            raise CheckpointError(
                f"audio_config: subsampling_conv_channels is {list(channels)}",
                "It has two numbers of channels.",
            )
        if read.hidden_size % (2 * read.num_attention_heads) or channels[0] % 4:
            raise CheckpointError(
                f"audio_config: hidden_size {read.hidden_size} of {read.num_attention_heads} "
                f"heads, {channels[0]} mel bins",
                "Each head has as many dimensions, and four bins become one.",
            )
        if read.attention_chunk_size != read.attention_context_left - 1:
            raise CheckpointError(
                f"audio_config: attention_chunk_size is {read.attention_chunk_size}, "
                f"attention_context_left {read.attention_context_left}",
                "Published ones differ by one.",
            )
        return read

    @property
    def bins(self) -> int:
        """Mel bins of a spectrogram: transformers takes the first convolution's channels."""
        return self.subsampling_conv_channels[0]

    @property
    def past(self) -> int:
        """Positions that one attends to, itself included."""
        return self.attention_context_left - 1

    @property
    def widths(self) -> int:
        """Numbers that the longest audio has at once, in the compute dtype."""
        frames = SECONDS * RATE // HOP
        # After the first convolution, before and after its norm in float32: of each second frame,
        # half of the bins. Then a position's residual stream and the MLP, or, in float32, the keys
        # and values that each position attends to.
        strided = 6 * (frames // 2) * (self.bins // 2) * self.bins
        position = 8 * self.hidden_size + 4 * self.attention_context_left * self.hidden_size
        return max(strided, TOKENS * position)

    def positions(self, frames: int) -> int:
        """Return the positions of some frames."""
        return (frames + 3) // 4


class HearingConfig(Protocol):
    """The config of a model with this encoder."""

    @property
    def hearing(self) -> AudioConfig: ...


def processor(config: HearingConfig, fields: Mapping[str, Any]) -> MelFrames:
    """Return what prepares audio: an `Architecture.audio`. Raises UnsupportedError where
    transformers is missing, CheckpointError."""
    bins = config.hearing.bins
    check_known(fields, "sampling_rate", RATE)
    check_known(fields, "hop_length", HOP)
    check_known(fields, "frame_length", FRAME)
    check_known(fields, "feature_size", bins)
    check_known(fields, "dither", 0, 0.0)
    theirs = transformers_processor(
        "gemma4.feature_extraction_gemma4", "Gemma4AudioFeatureExtractor"
    )
    looks = {name: fields[name] for name in LOOKS if fields.get(name) is not None}
    made = theirs(feature_size=bins, sampling_rate=RATE, **looks)
    return MelFrames(made, longest=SECONDS * RATE, shortest=FRAME - FRAME // 2 + 1)
