"""Configs of models that hear by Whisper's encoder, and the processor that makes its spectrograms.
Imports no torch.

Suffixes: N samples, P frames, W mel bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import attrs
from attrs import frozen

from inferno.configs.processors import transformers_processor
from inferno.configs.reader import check_known, check_positive, read_config
from inferno.contracts import Checkpoint, Grid, Pixels, RenamedView, SeeingPart
from inferno.errors import CheckpointError

HEARING = "hearing"
"""The path of what computes audio in the models that have it."""
RATE, HOP = 16_000, 160
"""Samples a second, and between two frames."""
_STRIDE = 2
"""Frames of a position."""


@frozen(kw_only=True)
class MelConfig:
    """`audio_config`: the fields that Whisper's encoder reads, under its older names."""

    num_mel_bins: int = 128
    encoder_layers: int = 32
    encoder_attention_heads: int = 20
    encoder_ffn_dim: int = 5120
    d_model: int = 1280
    max_source_positions: int = 1500

    NEWER: ClassVar[Mapping[str, str]] = {
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
        "intermediate_size": "encoder_ffn_dim",
        "hidden_size": "d_model",
    }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `audio_config`. Raises CheckpointError."""
        check_known(config, "activation_function", "gelu")
        check_known(config, "scale_embedding", False)
        renamed = {cls.NEWER.get(name, name): value for name, value in config.items()}
        read = read_config(cls, renamed)
        check_positive(**attrs.asdict(read))
        if read.d_model % read.encoder_attention_heads:
            raise CheckpointError(
                f"audio_config: d_model is {read.d_model} of {read.encoder_attention_heads} heads",
                "Each has as many dimensions.",
            )
        return read

    @property
    def frames(self) -> int:
        """Of a chunk."""
        return _STRIDE * self.max_source_positions

    @property
    def seconds(self) -> float:
        """Of a chunk."""
        return self.frames * HOP / RATE


class HearsMel:
    """What the config of a decoder has besides to be a `contracts.AudioModelConfig`. A base after
    the decoder's own; the subclass has these fields."""

    __slots__ = ()

    audio_token_id: int
    hearing: MelConfig
    hidden_size: int

    @property
    def audio_encoder(self) -> str:
        return HEARING

    @property
    def audio_rate(self) -> int:
        return RATE

    @property
    def audio_widths(self) -> int:
        mel = self.hearing
        # A position's residual stream, norm, queries, keys and values, what attention returns, and
        # the MLP; two frames of the first convolution.
        position = 7 * mel.d_model + 2 * mel.encoder_ffn_dim + 2 * mel.d_model
        return mel.max_source_positions * (position + 2 * self.hidden_size)


@frozen
class MelProcessor:
    """Makes the spectrograms of Whisper's encoder, by transformers' own class."""

    made: Any
    frames: int
    """The most frames of one chunk."""
    chunks: bool
    """Whether all of every chunk is sent, silence too, and any length is heard."""
    beyond: int
    """Frames of silence that are sent after what is heard."""

    @classmethod
    def of(
        cls,
        config: MelConfig,
        fields: Mapping[str, Any],
        *,
        frames: int = 0,
        chunks: bool = False,
        beyond: int = 0,
    ) -> Self:
        """`frames` are the most that are heard, those of the encoder's positions unless said.
        `fields` are those of `preprocessor_config.json`. Raises UnsupportedError where
        transformers is missing, CheckpointError."""
        check_known(fields, "sampling_rate", RATE)
        check_known(fields, "hop_length", HOP)
        check_known(fields, "feature_size", config.num_mel_bins)
        check_known(fields, "dither", 0, 0.0)
        theirs = transformers_processor(
            "whisper.feature_extraction_whisper", "WhisperFeatureExtractor"
        )
        looks = {name: fields[name] for name in ("n_fft", "padding_value") if name in fields}
        made = theirs(config.num_mel_bins, RATE, HOP, **looks)
        return cls(made, frames or config.frames, chunks, beyond)

    def __call__(self, samples_N: Any) -> Pixels:
        frames, most = self.frames, self.frames * HOP
        count = max(1, math.ceil(len(samples_N) / most)) if self.chunks else 1
        if len(samples_N) > (length := count * most):
            raise ValueError(f"it hears {most / RATE:g} s")
        if not self.chunks:  # a frame reads two before and behind it: further silence is alike
            length = min(length, (math.ceil(len(samples_N) / HOP) + self.beyond + 4) * HOP)
        features = self.made(
            samples_N,
            sampling_rate=RATE,
            padding="max_length",
            max_length=length,
            truncation=False,
            return_attention_mask=True,
            return_tensors="np",
        )
        heard = int(features["attention_mask"].sum())
        values_PW = features["input_features"][0].T
        if self.chunks:
            return Pixels(values_PW, (count, frames, heard))
        sent = min(heard + self.beyond, frames)
        return Pixels(values_PW[:sent], (1, sent, heard))


def heard(checkpoint: Checkpoint) -> RenamedView:
    """View a checkpoint with what its audio is computed by under `hearing`. An
    `Architecture.adapt`."""
    return heard_by(checkpoint, "audio_tower", "multi_modal_projector")


def heard_by(checkpoint: Checkpoint, *names: str) -> RenamedView:
    """The same with modules of these names only."""
    modules = {f"{HEARING}.{name}": (f"thinker.{name}", f"model.{name}", name) for name in names}
    part = SeeingPart(checkpoint, modules=modules)
    ours = {n: tower_name(n) if n.startswith(f"{HEARING}.") else n for n in part.names}
    return RenamedView(part, {name: theirs for theirs, name in ours.items()})


_OWN_NAMES = {f"{name}_proj": name for name in ("q", "k", "v", "out")}
"""The encoder's matrices are not called as those that ranks divide: each holds it whole."""


def tower_name(name: str) -> str:
    """Return a tensor's name in an encoder of ours, of the name that transformers gives it. One of
    ours stays as it is."""
    parts = [_OWN_NAMES.get(part, part) for part in name.split(".")]
    for i, part in enumerate(parts):
        if part in ("fc1", "fc2") and parts[i - 1] != "mlp":
            parts[i] = f"mlp.{part}"
    return ".".join(parts)


def grid_tokens(grid: Grid, pooled: int) -> int:
    """Return the tokens of what is heard of one chunk, `pooled` of the encoder's positions in
    each."""
    positions = (grid[2] - 1) // _STRIDE + 1
    return (positions - pooled) // pooled + 1
