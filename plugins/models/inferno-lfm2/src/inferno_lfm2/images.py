"""Prepares images for LFM2-VL, by Pillow: transformers' processor needs torchvision. Imports no
torch.

An image is scaled to a number of tokens between two. One that is much larger is cut into tiles,
which may be followed by the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import frozen

from inferno.configs import check_known
from inferno.contracts import ImageProcessor, Pixels
from inferno_lfm2.vision_config import SeeingLfm2Config, Shape, Tiling, VisionConfig, grid_of

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]
_BILINEAR = 2
"""As Pillow numbers it."""


def processor(config: SeeingLfm2Config, fields: Mapping[str, Any], most: int) -> ImageProcessor:
    """An `Architecture.images`. Raises CheckpointError for settings that cannot be."""
    vision, defaults = config.vision, config.tiling
    fixed = {
        "tile_size": defaults.tile_size,
        "downsample_factor": vision.downsample_factor,
        "encoder_patch_size": vision.patch_size,
    }
    for name, value in fixed.items():
        check_known(fields, name, None, value)
    options = {name: value for name, value in fields.items() if value is not None}
    tiling = within(Tiling.from_json({**attrs.asdict(defaults), **options}, vision), vision, most)
    factor = options.get("rescale_factor", 1 / 255)
    mean, std = (
        np.array(options.get(name, (0.5,) * 3), np.float32)[:, None]
        for name in ("image_mean", "image_std")
    )
    values = (np.arange(256, dtype=np.float32) * np.float32(factor) - mean) / std
    return _Processor(vision, tiling, options.get("resample", _BILINEAR), values)


def within(tiling: Tiling, vision: VisionConfig, most: int) -> Tiling:
    """Return a tiling of at most `most` tokens: with fewer tiles, or none."""
    tokens = min(tiling.max_image_tokens, most)
    least = tiling.min_image_tokens
    if tokens < tiling.max_image_tokens:
        least = min(least, max(1, tokens // 4))  # room for sides that are rounded up
    room = most - tokens if tiling.use_thumbnail else most
    tiles = min(tiling.max_tiles, room // (tiling.tile_size // vision.side) ** 2)
    return attrs.evolve(
        tiling,
        max_image_tokens=tokens,
        min_image_tokens=least,
        max_tiles=tiles,
        do_image_splitting=tiling.do_image_splitting and max(2, tiling.min_tiles) <= tiles,
    )


@frozen(eq=False)
class _Processor:
    vision: VisionConfig
    tiling: Tiling
    resample: int
    values: Array
    """(3, 256): what becomes of each value of a colour."""

    def __call__(self, image: Image) -> Pixels:
        """Return patches row by row, of each tile row by row, and of the whole."""
        size, side = (image.height, image.width), self.tiling.tile_size
        scaled = scaled_size(size, self.tiling, self.vision)
        if not (self.tiling.do_image_splitting and is_large(size, self.tiling, self.vision)):
            return self._pixels([self._scaled(image, scaled)], None, scaled)
        rows, columns = tiles = tile_grid(size, self.tiling)
        if tiles == (1, 1):
            return self._pixels([self._scaled(image, (side, side))], None, (side, side))
        cut = self._scaled(image, (rows * side, columns * side))
        cut = cut.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        pictures = list(cut.reshape(-1, side, side, 3))
        if self.tiling.use_thumbnail:
            return self._pixels([*pictures, self._scaled(image, scaled)], tiles, scaled)
        return self._pixels(pictures, tiles, None)

    def _scaled(self, image: Image, size: Shape) -> Array:
        """Return (height, width, 3)."""
        return np.asarray(image.resize(size[::-1], self.resample))

    def _pixels(self, pictures: list[Array], tiles: Shape | None, size: Shape | None) -> Pixels:
        patch, colours = self.vision.patch_size, np.arange(3)
        patches = []
        for picture in pictures:
            rows, columns = picture.shape[0] // patch, picture.shape[1] // patch
            cut = picture.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2)
            patches.append(self.values[colours, cut].reshape(rows * columns, -1))
        whole = None if size is None else (size[0] // patch, size[1] // patch)
        return Pixels(np.concatenate(patches), grid_of(tiles, whole))


def scaled_size(size: Shape, tiling: Tiling, vision: VisionConfig) -> Shape:
    """Return the height and the width that an image is scaled to: whole tokens, nearly of its
    shape, between the fewest and the most."""
    side = vision.side
    most, least = (n * side**2 for n in (tiling.max_image_tokens, tiling.min_image_tokens))
    height, width = (max(side, round(each / side) * side) for each in size)
    if height * width > most:
        scale = sqrt(size[0] * size[1] / most)
        height, width = (max(side, floor(each / scale / side) * side) for each in size)
    elif height * width < least:
        scale = sqrt(least / (size[0] * size[1]))
        height, width = (ceil(each * scale / side) * side for each in size)
    return height, width


def is_large(size: Shape, tiling: Tiling, vision: VisionConfig) -> bool:
    """Return whether an image is cut into tiles."""
    side = vision.side
    # A side of less than half a token counts as that of a patch.
    height, width = (max(vision.patch_size, round(each / side) * side) for each in size)
    return height * width > tiling.max_image_tokens * side**2 * tiling.max_pixels_tolerance


def tile_grid(size: Shape, tiling: Tiling) -> Shape:
    """Return how many rows and columns of tiles come nearest to an image's shape: of several, the
    largest that has less than twice the image's pixels."""
    height, width = size
    counts, able = range(1, tiling.max_tiles + 1), range(tiling.min_tiles, tiling.max_tiles + 1)
    grids = [(rows, columns) for columns in counts for rows in counts if rows * columns in able]
    least, best = float("inf"), (1, 1)
    for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        far = abs(width / height - columns / rows)
        fits = height * width > 0.5 * tiling.tile_size**2 * columns * rows
        if far < least or (far == least and fits):
            least, best = far, (rows, columns)
    return best
