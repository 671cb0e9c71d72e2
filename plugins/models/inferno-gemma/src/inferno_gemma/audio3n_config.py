"""The config of Gemma 3n's encoder of audio, and what makes its spectrograms. Imports no torch.

Suffixes: N samples, P frames, W mel bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt, le

from inferno.configs import check_known, check_positive, read_config, transformers_processor
from inferno.errors import CheckpointError
from inferno_gemma.spectrograms import HOP, LOOKS, RATE, MelFrames

__all__ = ["RATE", "AudioConfig", "processor"]

SECONDS, FRAME_MS, HOP_MS = 30, 32.0, 10.0
"""The longest audio, as published: what is longer, transformers cuts."""
FRAME = 513
"""Samples of a frame, and the one behind it."""


@frozen(kw_only=True)
class AudioConfig:
    """`audio_config`. Fields that configs omit have transformers' defaults."""

    hidden_size: int = 1536
    vocab_size: int = 128
    vocab_offset: int = 262_272
    rms_norm_eps: float = 1e-6
    gradient_clipping: float = field(default=1e10, validator=gt(0))
    input_feat_size: int = field(default=128, validator=le(4096))
    conf_attention_context_left: int = 13
    conf_attention_logit_cap: float = field(default=50.0, validator=gt(0))
    conf_num_attention_heads: int = 8
    conf_num_hidden_layers: int = 12
    conf_conv_kernel_size: int = 5
    conf_reduction_factor: int = 4
    conf_residual_weight: float = 0.5
    sscp_conv_channel_size: tuple[int, ...] = (128, 32)
    sscp_conv_group_norm_eps: float = field(default=1e-3, validator=gt(0))
    tokens: int = 188
    """Positions of audio of any length, `audio_soft_tokens_per_image` of the whole config."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `audio_config` of the whole config. Raises CheckpointError."""
        given = dict(config.get("audio_config") or {})
        check_known(given, "conf_attention_context_right", None, 0)
        check_known(given, "sscp_conv_kernel_size", None, [[3, 3], [3, 3]])
        check_known(given, "sscp_conv_stride_size", None, [[2, 2], [2, 2]])
        name, tokens = "sscp_conv_channel_size", config.get("audio_soft_tokens_per_image")
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
        read = read_config(cls, {**given, "tokens": tokens})
        sizes = {name: getattr(read, name) for name in attrs.fields_dict(cls)}
        check_positive(**{n: size for n, size in sizes.items() if type(size) is int})
        channels = read.sscp_conv_channel_size
        if len(channels) != 2 or any(type(n) is not int or n < 1 for n in channels):
            raise CheckpointError(
                f"audio_config: {name} is {list(channels)}", "It has two numbers of channels."
            )
        if read.hidden_size % (2 * read.conf_num_attention_heads) or read.input_feat_size % 4:
            raise CheckpointError(
                f"audio_config: hidden_size {read.hidden_size} of {read.conf_num_attention_heads} "
                f"heads, {read.input_feat_size} mel bins",
                "Check config.json: hidden_size is a multiple of 2 x heads, the bins are one of 4.",
            )
        return read

    @property
    def past(self) -> int:
        """Positions before one that it attends to."""
        return self.conf_attention_context_left - 1

    @property
    def seconds(self) -> float:
        """The longest audio that fits into `tokens` positions."""
        return min(SECONDS, 4 * self.conf_reduction_factor * self.tokens * HOP / RATE)

    @property
    def widths(self) -> int:
        """Numbers that the longest audio has at once, in the compute dtype."""
        frames, size = self.seconds * RATE // HOP, self.hidden_size
        # After the first convolution, before and after its norm in float32: of each second frame,
        # half of the bins. Then a position's residual stream and the MLP, or, in float32, the keys
        # and values that each position attends to.
        strided = 6 * frames / 2 * self.input_feat_size / 2 * self.sscp_conv_channel_size[0]
        position = 8 * size + 4 * self.conf_attention_context_left * size
        return int(max(strided, frames / 4 * position))


class HearingConfig(Protocol):
    """The config of a model with this encoder."""

    @property
    def hearing(self) -> AudioConfig: ...
    @property
    def audio_seconds(self) -> float: ...


def processor(config: HearingConfig, fields: Mapping[str, Any]) -> MelFrames:
    """Return what prepares audio: an `Architecture.audio`. Raises UnsupportedError where
    transformers is missing, CheckpointError."""
    bins = config.hearing.input_feat_size
    check_known(fields, "sampling_rate", None, RATE)
    check_known(fields, "hop_length_ms", None, HOP_MS)
    check_known(fields, "frame_length_ms", None, FRAME_MS)
    check_known(fields, "hop_length", None, HOP)
    check_known(fields, "frame_length", None, FRAME - 1)
    check_known(fields, "feature_size", None, bins)
    check_known(fields, "dither", None, 0, 0.0)
    theirs = transformers_processor(
        "gemma3n.feature_extraction_gemma3n", "Gemma3nAudioFeatureExtractor"
    )
    looks = {name: fields[name] for name in LOOKS if fields.get(name) is not None}
    made = theirs(feature_size=bins, sampling_rate=RATE, **looks)
    return MelFrames(made, longest=int(config.audio_seconds * RATE), shortest=FRAME)
