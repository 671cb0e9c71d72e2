"""Prepares images for Qwen2.5-VL, by transformers' own processor. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import ImageProcessor, Pixels
from inferno.errors import UnsupportedError
from inferno_qwen2.vision_config import Qwen25VLConfig

if TYPE_CHECKING:
    from PIL.Image import Image

_FIELDS = ("image_mean", "image_std", "rescale_factor", "resample")
"""Those of `preprocessor_config.json` that may differ. Others are fixed by the encoder."""


def processor(config: Qwen25VLConfig, fields: Mapping[str, Any], most: int) -> ImageProcessor:
    """An `Architecture.images`. Raises UnsupportedError where transformers or Pillow is missing."""
    try:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )
    except ImportError as error:
        raise UnsupportedError(
            f"images cannot be prepared: {error}", "pip install 'inferno[images]'"
        ) from error
    vision, side = config.vision, config.image_patch[0]
    size = fields.get("size") or {}
    least = fields.get("min_pixels") or size.get("shortest_edge") or 4 * side**2
    largest = fields.get("max_pixels") or size.get("longest_edge") or 1280 * side**2
    largest = min(largest, most * side**2)
    given = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    made: Any = Qwen2VLImageProcessorPil(
        size={"shortest_edge": min(least, largest), "longest_edge": largest},
        patch_size=vision.patch_size,
        temporal_patch_size=vision.temporal_patch_size,
        merge_size=vision.spatial_merge_size,
        **given,
    )
    return _Processor(made)


@frozen
class _Processor:
    made: Any

    def __call__(self, image: Image) -> Pixels:
        found = self.made(images=[image], return_tensors="np")
        frames, rows, columns = map(int, found["image_grid_thw"][0])
        return Pixels(found["pixel_values"], (frames, rows, columns))
