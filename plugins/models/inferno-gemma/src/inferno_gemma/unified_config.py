"""The config of Gemma 4 12B, whose decoder reads pixels and samples without an encoder, and a view
of checkpoints with what projects them. Imports no torch.

Suffixes: N samples, P frames, W samples of a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
import numpy as np
from attrs import frozen

from inferno.configs import (
    HEARING,
    check_known,
    check_positive,
    read_config,
    transformers_processor,
)
from inferno.contracts import Checkpoint, Grid, Pixels, SeeingPart
from inferno.contracts.text_parts import text_config
from inferno.errors import CheckpointError
from inferno_gemma.spectrograms import RATE, HearsBetween
from inferno_gemma.vision4_config import (
    AUDIO_TOKENS,
    IMAGE_TOKENS,
    MOST_TOKENS,
    SeeingGemma4Config,
    with_tokens,
)
from inferno_gemma.vision_config import ENCODER

SECONDS = 30
"""The longest audio, as published."""


@frozen(kw_only=True)
class PatchConfig:
    """`vision_config`. Fields that configs omit have transformers' defaults."""

    patch_size: int = 16
    pooling_kernel_size: int = 3
    """Patches of a token's side."""
    mm_embed_dim: int = 3840
    mm_posemb_size: int = 1120
    """The most tokens of an image's side."""
    rms_norm_eps: float = 1e-6

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `vision_config` of the whole config. Raises CheckpointError."""
        if not isinstance(given := config.get("vision_config"), Mapping):
            raise CheckpointError(
                "config.json: vision_config is missing",
                "A language model alone is a Gemma4UnifiedForCausalLM.",
            )
        read = read_config(cls, given)
        sizes = {name: getattr(read, name) for name in attrs.fields_dict(cls)}
        check_positive(**{n: size for n, size in sizes.items() if type(size) is int})
        check_known(given, "output_proj_dims", None, read.mm_embed_dim)
        return read

    @property
    def side(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.pooling_kernel_size


@frozen(kw_only=True)
class SampleConfig:
    """`audio_config`."""

    audio_embed_dim: int = 640
    """Samples of a token."""
    rms_norm_eps: float = 1e-6


@frozen(kw_only=True)
class UnifiedConfig(SeeingGemma4Config):
    """Gemma 4 12B (`contracts.ImageModelConfig`, `ImageLayoutConfig`)."""

    max_position_embeddings: int = 262_144
    sliding_window: int | None = 1024
    hidden_size_per_layer_input: int = 0
    audio_token_id: int = 258_881
    boa_token_id: int = 256_000
    eoa_token_id: int = 258_883
    patches: PatchConfig = PatchConfig()
    samples: SampleConfig = SampleConfig()

    @property
    def image_patch(self) -> tuple[int, int]:
        return self.patches.side, 3 * self.patches.side**2

    @property
    def image_widths(self) -> int:
        # Pixels before and after their norm, and what is made of them.
        return 2 * self.image_patch[1] + 6 * self.patches.mm_embed_dim + self.hidden_size

    def image_tokens(self, grid: Grid) -> int:
        return grid[1] * grid[2]


class Spans:
    """Of models whose images attend to all of themselves (`contracts.ImageSpanConfig`)."""

    @property
    def image_span(self) -> tuple[int, int]:
        return 1, MOST_TOKENS


class HearsSamples(HearsBetween):
    """Of models that hear (`contracts.AudioModelConfig`, `AudioLayoutConfig`)."""

    hidden_size: int
    samples: SampleConfig

    @property
    def audio_chunk(self) -> tuple[float, int]:
        return SECONDS, -(-SECONDS * RATE // self.samples.audio_embed_dim)

    @property
    def audio_seconds(self) -> float:
        return SECONDS

    @property
    def audio_widths(self) -> int:
        return self.audio_chunk[1] * (3 * self.samples.audio_embed_dim + self.hidden_size)

    def audio_tokens(self, grid: Grid) -> int:
        return grid[2]


@frozen(kw_only=True)
class SpanningConfig(Spans, UnifiedConfig): ...


@frozen(kw_only=True)
class HearingConfig(HearsSamples, UnifiedConfig): ...


@frozen(kw_only=True)
class WholeConfig(HearsSamples, Spans, UnifiedConfig):
    """As published."""


_MADE: Mapping[tuple[bool, bool], type[UnifiedConfig]] = {
    (False, False): UnifiedConfig,
    (True, False): SpanningConfig,
    (False, True): HearingConfig,
    (True, True): WholeConfig,
}
"""Whether images attend to all of themselves, and whether it hears."""


def unified(config: Mapping[str, Any]) -> UnifiedConfig:
    """Parse the config of a whole checkpoint, or of a `seeing` one: an `Architecture.config`.
    Raises CheckpointError."""
    text = text_config({k: v for k, v in config.items() if k != "vision_config"}) or config
    text = {k: v for k, v in text.items() if k not in ("patches", "samples")}
    spans = text.get("use_bidirectional_attention", "vision") == "vision"
    hears = isinstance(config.get("audio_config"), Mapping)
    tokens = (*IMAGE_TOKENS, *(AUDIO_TOKENS if hears else ()))
    read = with_tokens(_MADE[spans, hears], text, config, tokens)
    read = attrs.evolve(read, patches=PatchConfig.from_json(config))
    if hears:
        samples = read_config(SampleConfig, config["audio_config"])
        check_positive(audio_embed_dim=samples.audio_embed_dim)
        read = attrs.evolve(read, samples=samples)
    return read


def seeing(checkpoint: Checkpoint) -> SeeingPart:
    """View a checkpoint with what its images are computed by under `encoder`, its audio, if it
    hears, under `hearing`. An `Architecture.adapt`."""
    places = [(ENCODER, "vision_embedder"), (ENCODER, "embed_vision")]
    if isinstance(unified(checkpoint.config), HearsSamples):
        places.append((HEARING, "embed_audio"))
    modules = {f"{path}.{name}": (f"model.{name}", name) for path, name in places}
    return SeeingPart(checkpoint, modules=modules)


def processor(config: UnifiedConfig, fields: Mapping[str, Any]) -> Frames:
    """Return what prepares audio: an `Architecture.audio`. Raises UnsupportedError where
    transformers is missing, CheckpointError."""
    size = config.samples.audio_embed_dim
    check_known(fields, "sampling_rate", None, RATE)
    check_known(fields, "audio_samples_per_token", None, size)
    theirs = transformers_processor(
        "gemma4_unified.feature_extraction_gemma4_unified", "Gemma4UnifiedAudioFeatureExtractor"
    )
    return Frames(theirs(feature_size=size, audio_samples_per_token=size), size)


@frozen
class Frames:
    """Cuts samples into frames by transformers' own class."""

    made: Any
    size: int

    def __call__(self, samples_N: Any) -> Pixels:
        if len(samples_N) > SECONDS * RATE:
            raise ValueError(f"it hears {SECONDS} s")
        if not len(samples_N):
            raise ValueError("there is nothing to hear")
        values_PW = self.made([samples_N], return_tensors="np")["input_features"][0]
        return Pixels(
            np.ascontiguousarray(values_PW, np.float32), (1, len(values_PW), len(values_PW))
        )
