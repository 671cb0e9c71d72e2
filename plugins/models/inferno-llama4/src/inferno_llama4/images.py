"""Prepares images for Llama 4, by Pillow: transformers' processor needs torchvision. Imports no
torch.

An image is scaled without distortion, padded to a canvas of tiles, and cut into them; of several
tiles, the last one shows the whole image. Numbers are rounded to bfloat16, as in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import field, frozen

from inferno.contracts import ImageProcessor, Pixels
from inferno.errors import OptionError
from inferno_llama4.vision_config import SeeingLlama4Config, VisionConfig, with_whole

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]

_MOST_TILES, _BILINEAR = 16, 2
"""Unless the checkpoint says otherwise."""


def processor(config: SeeingLlama4Config, fields: Mapping[str, Any], most: int) -> ImageProcessor:
    """An `Architecture.images`. Raises OptionError if not even one tile fits."""
    each = config.vision.tile_tokens
    wanted = fields.get("max_patches") or _MOST_TILES
    fitting = [n for n in range(1, wanted + 1) if with_whole(n) * each <= most]
    if not fitting:
        raise OptionError(
            f"an image has at least {each} tokens, and may have {most}",
            "Neither --max-image-tokens nor --max-model-len may be less.",
        )
    return TileProcessor(
        config.vision,
        max(fitting),
        largest=bool(fields.get("resize_to_max_canvas")),
        resample=fields.get("resample", _BILINEAR),
        values=_values(
            fields.get("rescale_factor") or 1 / 255,
            fields.get("image_mean") or (0.5,) * 3,
            fields.get("image_std") or (0.5,) * 3,
        ),
    )


@frozen(eq=False)
class TileProcessor:
    vision: VisionConfig
    most_tiles: int
    largest: bool
    """Whether images are scaled up to the largest canvas."""
    resample: int
    """As Pillow numbers it."""
    values: Array
    """(3, 256): what becomes of each value of a colour."""
    canvases: Array = field(init=False)

    @canvases.default
    def _canvases(self) -> Array:
        return canvases(self.most_tiles, self.vision.image_size)

    def __call__(self, image: Image) -> Pixels:
        """Return patches row by row, tile by tile."""
        size = image.height, image.width
        tile, patch = self.vision.image_size, self.vision.patch_size
        canvas = best_canvas(size, self.canvases, self.largest)
        room = canvas
        if not self.largest:  # an image is enlarged to one tile at most
            room = min(max(size[0], tile), canvas[0]), min(max(size[1], tile), canvas[1])
        height, width = undistorted(size, room)
        padded = np.zeros((*canvas, 3), np.uint8)
        padded[:height, :width] = np.asarray(image.resize((width, height), self.resample))
        rows, columns = canvas[0] // tile, canvas[1] // tile
        tiles = padded.reshape(rows, tile, columns, tile, 3).swapaxes(1, 2)
        tiles = tiles.reshape(rows * columns, tile, tile, 3)
        if len(tiles) > 1:
            whole = np.asarray(image.resize((tile, tile), self.resample))
            tiles = np.concatenate([tiles, whole[None]])
        side = self.vision.side
        cut = tiles.reshape(len(tiles), side, patch, side, patch, 3).transpose(0, 1, 3, 5, 2, 4)
        colours = np.arange(3)[:, None, None]
        patches = self.values[colours, cut].reshape(-1, 3 * patch**2)
        return Pixels(patches, (1, rows * side, columns * side))


def canvases(most_tiles: int, tile: int) -> Array:
    """Return the height and the width of each canvas of at most `most_tiles` tiles: those of one
    shape together, the first found first."""
    by_shape: dict[float, list[tuple[int, int]]] = {}
    for count in range(most_tiles, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                columns = count // rows
                by_shape.setdefault(rows / columns, []).append((rows * tile, columns * tile))
    return np.array([canvas for group in by_shape.values() for canvas in group])


def best_canvas(size: tuple[int, int], found: Array, largest: bool) -> tuple[int, int]:
    """Return the canvas that an image of that height and width is enlarged least for, or, if all
    are too small, scaled down least: of several, the first of the smallest. With `largest`, the one
    that it is enlarged most for."""
    scales = (found.astype(np.float32) / np.array(size, np.float32)).min(axis=1)
    enlarged = scales[scales >= 1]
    if len(enlarged):
        scale = enlarged.max() if largest else enlarged.min()
    else:
        scale = scales.max()
    able = found[scales == scale]
    height, width = able[able.prod(axis=1).argmin()].tolist()
    return height, width


def undistorted(size: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """Return the largest height and width of that shape that fit."""
    by_height, by_width = room[0] / size[0], room[1] / size[1]
    if by_width < by_height:
        return max(1, min(int(size[0] * by_width), room[0])), room[1]
    return room[0], max(1, min(int(size[1] * by_height), room[1]))


def _values(factor: float, mean: Any, std: Any) -> Array:
    """Return what becomes of each value of a colour: every step is rounded to bfloat16."""
    scaled = _rounded(np.arange(256, dtype=np.float32) * np.float32(factor))
    means, stds = (_rounded(np.array(each, np.float32))[:, None] for each in (mean, std))
    return _rounded(_rounded(scaled - means) / stds)


def _rounded(x: Array) -> Array:
    """Round float32 to bfloat16, to the even one of two that are equally near."""
    bits: Array = x.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)
