"""The config of Llama 4's image encoder, and a view of checkpoints with it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt

from inferno.configs import check_known, check_positive, read_config
from inferno.contracts import Checkpoint, Grid, SeeingPart, per_expert
from inferno.errors import CheckpointError
from inferno_llama4.config import Llama4Config

ENCODER = "encoder"
"""The path of the encoder's module in the model."""
IMAGE, PATCH = "<|image|>", "<|patch|>"
"""What a template writes for an image, and the token at its positions."""
_NEXT_TILE, _NEXT_ROW, _WHOLE = 4, 5, 10
"""How far the tokens after a tile, after a row of tiles, and before the whole image, `IMAGE`, are
behind the one that begins an image, in the tokenizer; no config says it."""


@frozen(kw_only=True)
class VisionConfig:
    """`vision_config`. Fields that configs omit have transformers' defaults."""

    hidden_size: int = 768
    intermediate_size: int = 5632
    num_hidden_layers: int = 34
    num_attention_heads: int = 16
    image_size: int = 448
    """Pixels of a tile's side."""
    patch_size: int = 14
    pixel_shuffle_ratio: float = 0.5
    projector_input_dim: int = 4096
    projector_output_dim: int = 4096
    vision_output_dim: int = 7680
    rope_theta: float = field(default=10_000.0, validator=gt(0))

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the field `vision_config` of the whole config. Raises CheckpointError."""
        fields = config.get("vision_config") or {}
        check_known(fields, "hidden_act", "gelu")
        check_known(fields, "num_channels", 3)
        check_known(fields, "vision_feature_select_strategy", None, "default")
        check_known(fields, "multi_modal_projector_bias", False)
        rope = fields.get("rope_parameters") or fields
        read = read_config(cls, {**fields, "rope_theta": rope.get("rope_theta")})
        sizes = attrs.asdict(read)
        check_positive(**{name: size for name, size in sizes.items() if isinstance(size, int)})
        if read.hidden_size % (4 * read.num_attention_heads):
            raise CheckpointError(
                f"vision_config: hidden_size is {read.hidden_size} of {read.num_attention_heads} "
                "heads",
                "A head has a multiple of 4 dimensions.",
            )
        if read.image_size % read.patch_size or read.side % max(1, read.merge):
            raise CheckpointError(
                f"vision_config: a tile of {read.image_size} pixels is not cut evenly into patches "
                f"of {read.patch_size}, of which {read.merge} x {read.merge} are a token",
                "Check image_size, patch_size and pixel_shuffle_ratio.",
            )
        merged = read.hidden_size * read.merge**2
        if read.merge * read.pixel_shuffle_ratio != 1 or merged != read.intermediate_size:
            raise CheckpointError(
                f"vision_config: pixel_shuffle_ratio is {read.pixel_shuffle_ratio}, and the "
                f"adapter reads {read.intermediate_size} numbers of patches of {read.hidden_size}",
                "It is 1 / n, and intermediate_size n * n times hidden_size.",
            )
        if not read.projector_input_dim == read.projector_output_dim == read.vision_output_dim:
            raise CheckpointError(
                "vision_config: projector_input_dim, projector_output_dim and vision_output_dim "
                f"are {read.projector_input_dim}, {read.projector_output_dim} and "
                f"{read.vision_output_dim}",
                "They must be equal: each product reads what the one before it returns.",
            )
        return read

    @property
    def side(self) -> int:
        """Patches of a tile's side."""
        return self.image_size // self.patch_size

    @property
    def merge(self) -> int:
        """Patches of a token's side."""
        return round(1 / self.pixel_shuffle_ratio) if self.pixel_shuffle_ratio > 0 else 0

    @property
    def tile_tokens(self) -> int:
        """Positions of a tile."""
        return (self.side // self.merge) ** 2

    def tiles(self, grid: Grid) -> tuple[int, int]:
        """Return the rows and the columns of an image's tiles."""
        return grid[1] // self.side, grid[2] // self.side

    def num_tiles(self, grid: Grid) -> int:
        """Return how many tiles the encoder sees: of several, also the whole image as one."""
        rows, columns = self.tiles(grid)
        return with_whole(rows * columns)


def with_whole(tiles: int) -> int:
    """Return the number of tiles with the one that shows the whole of several."""
    return tiles + (tiles > 1)


@frozen(kw_only=True)
class SeeingLlama4Config(Llama4Config):
    """Llama 4 with its encoder (`contracts.ImageModelConfig`, `ImageLayoutConfig`,
    `ImageTextConfig`)."""

    image_token_id: int = 200_092
    boi_token_index: int = 200_080
    """The token that begins an image."""
    eoi_token_index: int = 200_081
    """The token that ends it."""
    vision: VisionConfig = VisionConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the config of a `seeing` checkpoint, where fields of the text config are beside
        `vision_config`. Raises CheckpointError."""
        token = config.get("image_token_id", config.get("image_token_index"))
        given = {k: v for k, v in config.items() if k not in ("vision", "image_token_id")}
        read = super().from_json(given if token is None else {**given, "image_token_id": token})
        last = max(read.image_token_id, read.eoi_token_index, read.boi_token_index + _WHOLE)
        if last >= read.vocab_size:
            raise CheckpointError(
                f"config.json: images have tokens up to {last} of {read.vocab_size}",
                "Check image_token_index, boi_token_index and eoi_token_index.",
            )
        return attrs.evolve(read, vision=VisionConfig.from_json(config))

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        side = self.vision.merge * self.vision.patch_size
        return side, 3 * side**2

    @property
    def image_widths(self) -> int:
        vision = self.vision
        # A patch's residual stream, norm, queries, keys and values before and after they are
        # rotated in float32, what attention returns, and the MLP's hidden numbers before and after
        # the activation; then what the adapter and the projector make of the patches of a token.
        patch = 12 * vision.hidden_size + 2 * vision.intermediate_size
        merged = vision.intermediate_size + 4 * vision.projector_output_dim
        return vision.merge**2 * patch + merged + self.hidden_size

    @property
    def image_text(self) -> tuple[str, str]:
        return IMAGE, PATCH

    def image_tokens(self, grid: Grid) -> int:
        return self.vision.num_tiles(grid) * self.vision.tile_tokens

    def image_layout(self, grid: Grid) -> Sequence[int | None]:
        begin, tile = self.boi_token_index, [None] * self.vision.tile_tokens
        rows, columns = self.vision.tiles(grid)
        layout: list[int | None] = [begin]
        if rows * columns > 1:
            row = [*tile, *[begin + _NEXT_TILE, *tile] * (columns - 1), begin + _NEXT_ROW]
            layout += row * rows
        return [*layout, begin + _WHOLE, *tile, self.eoi_token_index]


_MODULES = {
    f"{ENCODER}.{name}": (f"model.{name}", name)
    for name in ("vision_model", "multi_modal_projector")
}
_RENAMED = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "out"}


def seeing(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint with what its images are computed by under `encoder`, and each expert's
    matrices. An `Architecture.adapt`."""
    part = SeeingPart(checkpoint, modules=_MODULES, renamed=_RENAMED)
    return per_expert(part, transposed=True)
