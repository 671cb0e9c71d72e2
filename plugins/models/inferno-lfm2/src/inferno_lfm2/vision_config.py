"""The config of LFM2-VL, its encoder included, and a view of checkpoints with it. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import isqrt
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt

from inferno.configs import (
    SiglipConfig,
    check_known,
    check_positive,
    read_config,
    siglip_part,
)
from inferno.contracts import Checkpoint, Grid
from inferno.errors import CheckpointError
from inferno_lfm2.checkpoint import usual_names
from inferno_lfm2.config import Lfm2Config

ENCODER = "encoder"
"""The path of the encoder's module in the model."""
MOST_TILES = 10
"""In a row and in a column: the vocabulary has tokens for 10 x 10 tiles."""
_TILE, _WHOLE, _START, _END = 1, MOST_TILES**2 + 1, MOST_TILES**2 + 2, MOST_TILES**2 + 3
"""How far the tokens of the first tile, of the whole image, and of an image's start and end are
behind that of an image, in every tokenizer of LFM2-VL and LFM2.5-VL; no config says it."""
_TILE_ROWS, _TILES_ALONE = 1 << 10, 1 << 20

Shape = tuple[int, int]
"""Rows and columns."""


def grid_of(tiles: Shape | None, whole: Shape | None) -> Grid:
    """Return the grid of an image: the patches of the whole of it, and, in the place of a number of
    frames, how many rows and columns of tiles are before it. At least one of them is given."""
    frames = 1 if tiles is None else tiles[0] * _TILE_ROWS + tiles[1]
    return (frames + _TILES_ALONE, 1, 1) if whole is None else (frames, *whole)


def tiles_of(grid: Grid) -> Shape:
    """Return how many rows and columns of tiles an image has; (0, 0) if it is seen whole only."""
    rows, columns = divmod(grid[0] % _TILES_ALONE, _TILE_ROWS)
    return (rows, columns) if rows else (0, 0)


@frozen(kw_only=True)
class VisionConfig(SiglipConfig):
    """`vision_config`, and the fields beside it that the projector reads."""

    num_patches: int = 256
    """Of the square that position embeddings are stored for."""
    downsample_factor: int = 2
    """Patches of a token's side."""
    projector_hidden_size: int = 2560
    projector_bias: bool = True
    projector_use_layernorm: bool = True

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read them of the whole config. Raises CheckpointError."""
        check_known(config, "projector_hidden_act", "gelu")
        check_known(config, "vision_feature_layer", -1)
        check_known(config, "use_image_special_tokens", True)
        beside = (
            "downsample_factor",
            "projector_hidden_size",
            "projector_bias",
            "projector_use_layernorm",
        )
        fields = {name: config[name] for name in beside if name in config}
        read = cls.from_fields({**(config.get("vision_config") or {}), **fields})
        if read.positions**2 != read.num_patches:
            raise CheckpointError(
                f"vision_config: num_patches is {read.num_patches}", "It is a square number."
            )
        return read

    @property
    def positions(self) -> int:
        """The side of the square of position embeddings."""
        return isqrt(self.num_patches)

    @property
    def unit(self) -> int:
        """Patches of a token."""
        return self.downsample_factor**2

    @property
    def side(self) -> int:
        """Pixels of a token's side."""
        return self.downsample_factor * self.patch_size


@frozen(kw_only=True)
class Tiling:
    """How images are scaled and cut: fields of `preprocessor_config.json`, in the first checkpoints
    of `config.json`. Fields that are omitted have transformers' defaults."""

    do_image_splitting: bool = True
    """Whether large images are cut into tiles."""
    use_thumbnail: bool = True
    """Whether the whole image follows its tiles."""
    min_tiles: int = 2
    max_tiles: int = MOST_TILES
    min_image_tokens: int = 64
    """Of an image that is not cut, and of the whole after its tiles."""
    max_image_tokens: int = 256
    tile_size: int = 512
    """Pixels of a tile's side."""
    max_pixels_tolerance: float = field(default=2.0, validator=gt(0))
    """How many times the pixels of `max_image_tokens` an image may have and is not cut."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], vision: VisionConfig) -> Self:
        """Read them. Raises CheckpointError."""
        read = read_config(cls, fields)
        sizes = attrs.asdict(read)
        check_positive(**{name: size for name, size in sizes.items() if type(size) is int})
        if not read.min_tiles <= read.max_tiles <= MOST_TILES:
            raise CheckpointError(
                f"min_tiles is {read.min_tiles}, max_tiles {read.max_tiles}",
                f"An image has at most {MOST_TILES} tiles: there are no tokens for more.",
            )
        if read.tile_size % vision.side or read.min_image_tokens > read.max_image_tokens:
            raise CheckpointError(
                f"tile_size is {read.tile_size}, of tokens of {vision.side} pixels, and an image "
                f"has {read.min_image_tokens} to {read.max_image_tokens} of them",
                "Check tile_size, min_image_tokens and max_image_tokens.",
            )
        return read


@frozen(kw_only=True)
class SeeingLfm2Config(Lfm2Config):
    """LFM2 with its encoder (`contracts.ImageModelConfig`, `ImageLayoutConfig`)."""

    image_token_id: int = 396
    vision: VisionConfig = VisionConfig()
    tiling: Tiling = Tiling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read the config of a `seeing` checkpoint, where fields of the text config are beside
        `vision_config`. Raises CheckpointError."""
        check_known(config, "model_type", "lfm2")
        token = config.get("image_token_id", config.get("image_token_index"))
        # `tie_word_embeddings` says what is stored.
        beside = ("vision", "tiling", "image_token_id", "tie_embedding")
        given = {name: value for name, value in config.items() if name not in beside}
        read = super().from_json(given if token is None else {**given, "image_token_id": token})
        if read.image_token_id + _END >= read.vocab_size:
            raise CheckpointError(
                f"config.json: images have tokens up to {read.image_token_id + _END} of "
                f"{read.vocab_size}",
                "Check image_token_id and vocab_size.",
            )
        vision = VisionConfig.from_json(config)
        return attrs.evolve(read, vision=vision, tiling=Tiling.from_json(config, vision))

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # SigLIP's own pooling, and a norm that the config says is not computed.
        unused = [f"{ENCODER}.vision_tower.head.*"]
        if not self.vision.projector_use_layernorm:
            unused.append(f"{ENCODER}.multi_modal_projector.layer_norm.*")
        return (*super().unused_tensors, *unused)

    @property
    def image_encoder(self) -> str:
        return ENCODER

    @property
    def image_patch(self) -> tuple[int, int]:
        return self.vision.side, 3 * self.vision.side**2

    @property
    def image_widths(self) -> int:
        vision = self.vision
        # Of the encoder and of the projector: the patches of a token before and after the norm, the
        # first product before and after the activation, and the second. Of an image in tiles it is
        # more than there is at once: they are computed one by one.
        merged = 2 * vision.unit * vision.hidden_size + 2 * vision.projector_hidden_size
        return vision.unit * vision.patch_widths + merged + 2 * self.hidden_size

    def parts(self, grid: Grid) -> list[Shape]:
        """Return the patches of each picture that the encoder sees of an image: its tiles row by
        row, and the whole."""
        rows, columns = tiles_of(grid)
        side = self.tiling.tile_size // self.vision.patch_size
        whole = [(grid[1], grid[2])] if grid[0] < _TILES_ALONE else []
        return [(side, side)] * (rows * columns) + whole

    def image_tokens(self, grid: Grid) -> int:
        return sum(rows * columns for rows, columns in self.parts(grid)) // self.vision.unit

    def image_layout(self, grid: Grid) -> Sequence[int | None]:
        rows, columns = tiles_of(grid)
        before = [_TILE + MOST_TILES * row + n for row in range(rows) for n in range(columns)]
        before += [_WHOLE] if 0 < len(before) < len(self.parts(grid)) else []
        layout: list[int | None] = [self.image_token_id + _START]
        for number, (high, wide) in zip_longest(before, self.parts(grid)):
            layout += [] if number is None else [self.image_token_id + number]
            layout += [None] * (high * wide // self.vision.unit)
        return [*layout, self.image_token_id + _END]


def seeing(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint with what its images are computed by under `encoder`, and the text model
    under the usual names. An `Architecture.adapt`."""
    return usual_names(siglip_part(checkpoint, ENCODER))
