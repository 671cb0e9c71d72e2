"""Reading `preprocessor_config.json`: transformers' own processors of images, which need Pillow and
no torch, and of audio, which need neither."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.configs.vision import SeesGrids
from inferno.contracts import ImageProcessor, Pixels
from inferno.errors import UnsupportedError

if TYPE_CHECKING:
    from PIL.Image import Image

LOOKS = ("image_mean", "image_std", "rescale_factor", "resample")
"""Fields of `preprocessor_config.json` that may differ. Others are fixed by the encoder."""


def transformers_processor(module: str, name: str) -> Any:
    """Return a class of transformers that prepares images by Pillow, or audio: `module` is below
    `transformers.models`. Raises UnsupportedError where transformers or Pillow is missing."""
    try:
        return getattr(importlib.import_module(f"transformers.models.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"images cannot be prepared: {error}", "pip install 'inferno[images]'"
        ) from error


def given_looks(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `LOOKS` that a checkpoint has."""
    return {name: fields[name] for name in LOOKS if fields.get(name) is not None}


def grid_processor(module: str, name: str) -> Callable[..., ImageProcessor]:
    """Return an `Architecture.images` of a `SeesGrids` config. The class of transformers scales
    images to a number of pixels between two, and cuts them into grids of patches."""

    def processor(config: SeesGrids, fields: Mapping[str, Any], most: int) -> ImageProcessor:
        """Raises UnsupportedError where transformers or Pillow is missing."""
        made, vision = transformers_processor(module, name), config.vision
        side = vision.patch_size * vision.spatial_merge_size
        size = fields.get("size") or {}
        least = fields.get("min_pixels") or size.get("shortest_edge") or 4 * side**2
        largest = fields.get("max_pixels") or size.get("longest_edge") or 1280 * side**2
        largest = min(largest, most * side**2)
        return _GridProcessor(
            made(
                size={"shortest_edge": min(least, largest), "longest_edge": largest},
                patch_size=vision.patch_size,
                temporal_patch_size=vision.temporal_patch_size,
                merge_size=vision.spatial_merge_size,
                **given_looks(fields),
            )
        )

    return processor


@frozen
class _GridProcessor:
    made: Any

    def __call__(self, image: Image) -> Pixels:
        features = self.made(images=[image], return_tensors="np")
        frames, rows, columns = map(int, features["image_grid_thw"][0])
        return Pixels(features["pixel_values"], (frames, rows, columns))
