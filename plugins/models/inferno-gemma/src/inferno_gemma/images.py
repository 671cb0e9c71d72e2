"""Prepares images for Gemma 3, by transformers' own processor. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from inferno.configs import given_looks, transformers_processor
from inferno.contracts import ImageProcessor, Pixels
from inferno_gemma.vision_config import SeeingGemma3Config, VisionConfig

if TYPE_CHECKING:
    from PIL.Image import Image

_MODULE, _CLASS = "gemma3.image_processing_pil_gemma3", "Gemma3ImageProcessorPil"


def processor(config: SeeingGemma3Config, fields: Mapping[str, Any], most: int) -> ImageProcessor:
    """An `Architecture.images`. Every image is scaled to one square; crops ("pan and scan") are
    left out, as they are unless a request asks for them. Raises UnsupportedError where transformers
    or Pillow is missing."""
    made, side = transformers_processor(_MODULE, _CLASS), config.vision.image_size
    size = {"height": side, "width": side}
    looks = given_looks(fields)
    return _Processor(made(size=size, do_pan_and_scan=False, **looks), config.vision)


@frozen
class _Processor:
    made: Any
    vision: VisionConfig

    def __call__(self, image: Image) -> Pixels:
        """Return patches row by row."""
        found = np.asarray(self.made(images=[image], return_tensors="np")["pixel_values"][0])
        side, size = self.vision.side, self.vision.patch_size
        cut = found.reshape(3, side, size, side, size).transpose(1, 3, 0, 2, 4)
        patches = np.ascontiguousarray(cut.reshape(side**2, -1), np.float32)
        return Pixels(patches, (1, side, side))
