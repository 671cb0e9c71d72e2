"""The config of Gemma 3's image encoder, and a view of checkpoints with it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import SiglipConfig, siglip_part
from inferno.contracts import Checkpoint, Grid, SeeingPart
from inferno.contracts.text_parts import text_config
from inferno.errors import CheckpointError
from inferno_gemma.config import Gemma3Config

ENCODER = "encoder"
"""The path of the encoder's module in the model."""
START, END, PLACE = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
"""Tokens around the positions of an image, and at them."""


@frozen(kw_only=True)
class VisionConfig(SiglipConfig):
    """`vision_config`, and the number of tokens of an image beside it."""

    image_size: int = 224
    """Pixels of a side: images are squares."""
    tokens: int = 256
    """Positions of an image, `mm_tokens_per_image` of the whole config: each is the mean of a
    square of patches."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `vision_config` of the whole config. Raises CheckpointError."""
        fields = {k: v for k, v in (config.get("vision_config") or {}).items() if k != "tokens"}
        tokens = config.get("mm_tokens_per_image")
        read = cls.from_fields(fields if tokens is None else {**fields, "tokens": tokens})
        side = isqrt(read.tokens)
        if side**2 != read.tokens or read.side % side or read.image_size % read.patch_size:
            raise CheckpointError(
                f"config.json: mm_tokens_per_image is {read.tokens}, and an image has "
                f"{read.image_size} x {read.image_size} pixels in patches of {read.patch_size}",
                "Tokens are a square, whose side divides that of the patches.",
            )
        return read

    @property
    def side(self) -> int:
        """Patches of an image's side."""
        return self.image_size // self.patch_size

    @property
    def merge(self) -> int:
        """Patches of a token's side."""
        return self.side // isqrt(self.tokens)


@frozen(kw_only=True)
class SeeingGemma3Config(Gemma3Config):
    """Gemma 3 with its encoder (`contracts.ImageModelConfig`, `ImageSpanConfig`,
    `ImageTextConfig`)."""

    image_token_id: int = 262_144
    image_place: str = PLACE
    """The token of that id, as it is written."""
    vision: VisionConfig = VisionConfig()

    @classmethod
    def from_multimodal(cls, config: Mapping[str, Any]) -> Self:
        """Read the config of a whole checkpoint, or of a `seeing` one, where fields of the text
        config are beside `vision_config`."""
        token = config.get("image_token_id", config.get("image_token_index"))
        text = {**(text_config(config) or config)}
        text = {k: v for k, v in text.items() if k != "vision_config"}
        tied = config.get("tie_word_embeddings", True)
        given = {**text, "tie_word_embeddings": tied}
        given |= {name: config[name] for name in ("image_place",) if name in config}
        read = cls.from_json(given if token is None else {**given, "image_token_id": token})
        if read.image_token_id >= read.vocab_size:
            raise CheckpointError(
                f"config.json: image_token_id is {read.image_token_id} of {read.vocab_size} tokens",
                "Check both.",
            )
        return attrs.evolve(read, vision=VisionConfig.from_json(config))

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # SigLIP's own pooling, which some checkpoints have.
        return (*super().unused_tensors, f"{ENCODER}.vision_tower.head.*")

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        merge, size = self.vision.merge, self.vision.patch_size
        return size * merge, 3 * (size * merge) ** 2

    @property
    def image_widths(self) -> int:
        vision = self.vision
        return vision.merge**2 * vision.patch_widths + vision.hidden_size + self.hidden_size

    @property
    def image_span(self) -> tuple[int, int]:
        return self.vision.tokens, self.vision.tokens

    @property
    def image_text(self) -> tuple[str, str]:
        return START, f"\n\n{START}{self.image_place}{END}\n\n"

    def image_tokens(self, grid: Grid) -> int:
        return grid[1] * grid[2] // self.vision.merge**2


def seeing(checkpoint: Checkpoint) -> SeeingPart:
    """View a checkpoint with what its images are computed by under `encoder`. An
    `Architecture.adapt`."""
    return siglip_part(checkpoint, ENCODER)
