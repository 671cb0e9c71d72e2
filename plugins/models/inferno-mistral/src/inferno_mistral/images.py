"""Prepares images for Mistral Small 3.1 and Ministral 3, by transformers' own processor. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from inferno.configs import given_looks, transformers_processor
from inferno.contracts import ImageProcessor, Pixels
from inferno_mistral.vision_config import SeeingMinistral3Config, SeeingMistralConfig, VisionConfig

if TYPE_CHECKING:
    from PIL.Image import Image

_MODULE, _CLASS = "pixtral.image_processing_pil_pixtral", "PixtralImageProcessorPil"
_LONGEST = 1540
"""Pixels of the longer side of an image, unless the checkpoint says otherwise."""


def processor(
    config: SeeingMistralConfig | SeeingMinistral3Config, fields: Mapping[str, Any], most: int
) -> ImageProcessor:
    """An `Architecture.images`. Raises UnsupportedError where transformers or Pillow is missing."""
    made, side = transformers_processor(_MODULE, _CLASS), config.vision.side
    longest = (fields.get("size") or {}).get("longest_edge") or _LONGEST
    size = {"longest_edge": min(longest, isqrt(most) * side)}
    patch = {"height": side, "width": side}  # of tokens: none is cut
    return _Processor(made(size=size, patch_size=patch, **given_looks(fields)), config.vision)


@frozen
class _Processor:
    made: Any
    vision: VisionConfig

    def __call__(self, image: Image) -> Pixels:
        """Return patches in the order of their tokens."""
        values = self.made(images=[image], return_tensors="np")["pixel_values"][0]
        size, merge = self.vision.patch_size, self.vision.spatial_merge_size
        rows, columns = (pixels // size for pixels in values.shape[1:])
        cut = values.reshape(3, rows // merge, merge, size, columns // merge, merge, size)
        patches = cut.transpose(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, -1)
        return Pixels(np.ascontiguousarray(patches, np.float32), (1, rows, columns))
