"""The config of Gemma 3n that sees and hears, and a view of checkpoints with its encoders. Imports
no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.configs import HEARING
from inferno.contracts import Checkpoint, Grid, SeeingPart
from inferno.contracts.text_parts import text_config
from inferno.errors import CheckpointError
from inferno_gemma.audio3n_config import AudioConfig
from inferno_gemma.config3n import Gemma3nConfig
from inferno_gemma.mobilenet_config import MobileNetConfig
from inferno_gemma.spectrograms import Hears
from inferno_gemma.vision_config import ENCODER

PIXELS = 768
"""Of an image's side, unless a checkpoint's `preprocessor_config.json` says otherwise."""
IMAGE, AUDIO = "<image_soft_token>", "<audio_soft_token>"
"""Tokens at the positions of an image and of audio, which templates write."""


@frozen(kw_only=True)
class MultimodalGemma3nConfig(Hears, Gemma3nConfig):
    """Gemma 3n with its encoders (`contracts.ImageModelConfig`, `ImageCountConfig`,
    `ImageTextConfig`, `AudioModelConfig`, `AudioTextConfig`)."""

    image_token_id: int = 262_145
    audio_token_id: int = 262_273
    vision: MobileNetConfig = MobileNetConfig()
    hearing: AudioConfig = AudioConfig()

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        side = PIXELS // self.vision.side
        return side, 3 * side**2

    @property
    def image_widths(self) -> int:
        vision = self.vision
        return vision.widths(self.image_patch[0]) + 3 * vision.hidden_size + self.hidden_size

    @property
    def image_count(self) -> int:
        return self.vision.tokens

    @property
    def image_text(self) -> tuple[str, str]:
        return IMAGE, f"\n\n<start_of_image>{IMAGE}<end_of_image>\n\n"

    def image_tokens(self, grid: Grid) -> int:
        return grid[1] * grid[2]

    @property
    def audio_chunk(self) -> tuple[float, int]:
        return self.audio_seconds, self.hearing.tokens

    @property
    def audio_seconds(self) -> float:
        return self.hearing.seconds

    @property
    def audio_widths(self) -> int:
        return self.hearing.widths + 3 * self.hearing.tokens * self.hidden_size

    @property
    def audio_text(self) -> tuple[str, str]:
        return AUDIO, f"\n\n<start_of_audio>{AUDIO}<end_of_audio>\n\n"

    def audio_tokens(self, grid: Grid) -> int:
        return self.hearing.tokens if grid[2] else 0


def gemma3n(config: Mapping[str, Any]) -> Gemma3nConfig:
    """Parse the config of a whole checkpoint, or of a `seeing` one: an `Architecture.config`.
    Raises CheckpointError."""
    text = text_config({k: v for k, v in config.items() if k != "vision_config"}) or config
    named = {n: config[n] for n in _TOKENS if config.get(n) is not None}
    text = {k: v for k, v in text.items() if k not in ("vision", "hearing")}
    read = MultimodalGemma3nConfig.from_json({**text, **named})
    read = attrs.evolve(
        read, vision=MobileNetConfig.from_json(config), hearing=AudioConfig.from_json(config)
    )
    for token, encoder in ((read.image_token_id, read.vision), (read.audio_token_id, read.hearing)):
        first, behind = encoder.vocab_offset, encoder.vocab_offset + encoder.vocab_size
        if not first <= token < behind <= read.vocab_size:
            raise CheckpointError(
                f"config.json: token {token} of images or audio is to be between {first} and "
                f"{behind - 1}, of {read.vocab_size} tokens",
                "Check image_token_id, audio_token_id, and each vocab_offset and vocab_size.",
            )
    return read


_TOKENS = ("image_token_id", "audio_token_id")
_MODULES = {
    f"{path}.{name}": (f"model.{name}", name)
    for path, names in (
        (ENCODER, ("vision_tower", "embed_vision")),
        (HEARING, ("audio_tower", "embed_audio")),
    )
    for name in names
}
_RENAMED = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
"""Of the encoder of audio, which ranks hold whole."""


def seeing(checkpoint: Checkpoint) -> SeeingPart:
    """View a checkpoint with what its images are computed by under `encoder`, its audio under
    `hearing`. An `Architecture.adapt`."""
    return SeeingPart(checkpoint, modules=_MODULES, renamed=_RENAMED)
