"""The config of Gemma 4's encoders, of images and of audio, and a view of checkpoints with them.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import attrs
from attrs import field, frozen
from attrs.validators import gt

from inferno.configs import HEARING, check_known, check_positive, read_config
from inferno.contracts import Checkpoint, Grid, SeeingPart, per_expert
from inferno.contracts.text_parts import text_config
from inferno.errors import CheckpointError
from inferno_gemma.audio4_config import SECONDS, TOKENS, AudioConfig
from inferno_gemma.config4 import Gemma4Config
from inferno_gemma.spectrograms import HearsBetween
from inferno_gemma.vision_config import ENCODER

MOST_TOKENS = 280
"""Positions of an image, unless a checkpoint's `preprocessor_config.json` says otherwise."""
_THETA = 100.0


@frozen(kw_only=True)
class VisionConfig:
    """`vision_config`. Fields that configs omit have transformers' defaults."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    head_dim: int = 64
    rms_norm_eps: float = 1e-6
    patch_size: int = 16
    pooling_kernel_size: int = 3
    """Patches of a token's side."""
    position_embedding_size: int = 10_240
    """The most patches of an image's side."""
    use_clipped_linears: bool = False
    standardize: bool = False
    rope_theta: float = field(default=_THETA, validator=gt(0))

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `vision_config` of the whole config. Raises CheckpointError."""
        if not isinstance(given := config.get("vision_config"), Mapping):
            raise CheckpointError(
                "config.json: vision_config is missing",
                "A language model without an encoder is a Gemma4ForCausalLM.",
            )
        rope = given.get("rope_parameters") or {}
        check_known(given, "hidden_activation", "gelu_pytorch_tanh")
        check_known(given, "attention_bias", None, False)
        check_known(rope, "rope_type", "axial", "default")
        read = read_config(cls, {**given, "rope_theta": rope.get("rope_theta", _THETA)})
        sizes = {name: getattr(read, name) for name in attrs.fields_dict(cls)}
        check_positive(**{n: size for n, size in sizes.items() if type(size) is int})
        if read.head_dim % 4 or read.num_attention_heads % read.num_key_value_heads:
            raise CheckpointError(
                f"vision_config: head_dim {read.head_dim} of {read.num_attention_heads} heads that "
                f"share {read.num_key_value_heads}",
                "A head has a multiple of 4 dimensions, and as many heads share each key.",
            )
        return read

    @property
    def side(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.pooling_kernel_size


@frozen(kw_only=True)
class SeeingGemma4Config(Gemma4Config):
    """Gemma 4 with its encoder of images (`contracts.ImageModelConfig`, `ImageLayoutConfig`)."""

    image_token_id: int = 258_880
    boi_token_id: int = 255_999
    eoi_token_id: int = 258_882
    pad_token_id: int = 0
    vision: VisionConfig = VisionConfig()

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        return self.vision.side, 3 * self.vision.side**2

    @property
    def image_widths(self) -> int:
        vision = self.vision
        heads = (vision.num_attention_heads + vision.num_key_value_heads) * vision.head_dim
        # A patch's residual stream and norm, queries, keys and values before and after they are
        # normalized and rotated in float32, what attention returns, and the MLP's three matrices.
        patch = 3 * vision.hidden_size + 6 * heads + 3 * vision.intermediate_size
        return vision.pooling_kernel_size**2 * patch + 3 * vision.hidden_size + self.hidden_size

    def image_tokens(self, grid: Grid) -> int:
        return grid[1] * grid[2] // self.vision.pooling_kernel_size**2

    def image_layout(self, grid: Grid) -> Sequence[int | None]:
        return [self.boi_token_id, *[None] * self.image_tokens(grid), self.eoi_token_id]


C = TypeVar("C", bound=SeeingGemma4Config)


@frozen(kw_only=True)
class SpanningGemma4Config(SeeingGemma4Config):
    """The same, of models in which positions of an image attend to all of it in layers with a
    window (`contracts.ImageSpanConfig`)."""

    @property
    def image_span(self) -> tuple[int, int]:
        return 1, MOST_TOKENS


@frozen(kw_only=True)
class HearingGemma4Config(HearsBetween, SeeingGemma4Config):
    """Gemma 4 with its encoders of images and audio (`contracts.AudioModelConfig`,
    `AudioLayoutConfig`)."""

    audio_token_id: int = 258_881
    boa_token_id: int = 256_000
    eoa_token_id: int = 258_883
    hearing: AudioConfig = AudioConfig()

    @property
    def audio_chunk(self) -> tuple[float, int]:
        return SECONDS, TOKENS

    @property
    def audio_seconds(self) -> float:
        return SECONDS

    @property
    def audio_widths(self) -> int:
        return self.hearing.widths + TOKENS * self.hidden_size

    def audio_tokens(self, grid: Grid) -> int:
        return min(self.hearing.positions(grid[2]), TOKENS)


def gemma4(config: Mapping[str, Any]) -> SeeingGemma4Config:
    """Parse the config of a whole checkpoint, or of a `seeing` one: an `Architecture.config`.
    Raises CheckpointError."""
    text = text_config({k: v for k, v in config.items() if k != "vision_config"}) or config
    tokens: tuple[str, ...] = IMAGE_TOKENS
    made = SeeingGemma4Config
    if text.get("use_bidirectional_attention") == "vision":
        made = SpanningGemma4Config
    elif isinstance(config.get("audio_config"), Mapping):
        tokens, made = (*IMAGE_TOKENS, *AUDIO_TOKENS), HearingGemma4Config
    read = with_tokens(made, text, config, tokens)
    read = attrs.evolve(read, vision=VisionConfig.from_json(config))
    if isinstance(read, HearingGemma4Config):
        read = attrs.evolve(read, hearing=AudioConfig.from_json(config["audio_config"]))
    return read


def with_tokens(
    made: type[C], text: Mapping[str, Any], config: Mapping[str, Any], tokens: Sequence[str]
) -> C:
    """Read the fields of the text config, and ids of tokens that the whole config has. Raises
    CheckpointError."""
    named = {n: config[n] for n in tokens if config.get(n) is not None}
    if "eoa_token_id" in tokens and config.get("eoa_token_index") is not None:
        named["eoa_token_id"] = config["eoa_token_index"]
    read = made.from_json({**text, **named})
    for name in (*tokens, "pad_token_id"):
        if not 0 <= getattr(read, name) < read.vocab_size:
            raise CheckpointError(
                f"config.json: {name} is {getattr(read, name)} of {read.vocab_size} tokens",
                "Check both.",
            )
    return read


IMAGE_TOKENS = ("image_token_id", "boi_token_id", "eoi_token_id")
AUDIO_TOKENS = ("audio_token_id", "boa_token_id", "eoa_token_id")
_MODULES = {
    f"{ENCODER}.{name}": (f"model.{name}", name) for name in ("vision_tower", "embed_vision")
}
_HEARING = {f"{HEARING}.{name}": (f"model.{name}", name) for name in ("audio_tower", "embed_audio")}


def seeing(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint with what its images are computed by under `encoder`, its audio, if it
    hears, under `hearing`, and with matrices for each expert. An `Architecture.adapt`."""
    hears = isinstance(gemma4(checkpoint.config), HearingGemma4Config)
    return per_expert(SeeingPart(checkpoint, modules={**_MODULES, **(_HEARING if hears else {})}))
