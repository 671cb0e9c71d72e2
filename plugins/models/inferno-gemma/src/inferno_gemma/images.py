"""Prepares images for Gemma 3, 3n and 4, by transformers' own processors. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from attrs import frozen

from inferno.configs import given_looks, transformers_processor
from inferno.contracts import ImageProcessor, Pixels
from inferno.errors import CheckpointError
from inferno_gemma.config3n_media import PIXELS, MultimodalGemma3nConfig
from inferno_gemma.mobilenet_config import STRIDE
from inferno_gemma.unified_config import UnifiedConfig
from inferno_gemma.vision4_config import MOST_TOKENS, SeeingGemma4Config
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
        pixels = np.asarray(self.made(images=[image], return_tensors="np")["pixel_values"][0])
        side, size = self.vision.side, self.vision.patch_size
        cut = pixels.reshape(3, side, size, side, size).transpose(1, 3, 0, 2, 4)
        patches = np.ascontiguousarray(cut.reshape(side**2, -1), np.float32)
        return Pixels(patches, (1, side, side))


def processor3n(
    config: MultimodalGemma3nConfig, fields: Mapping[str, Any], most: int
) -> ImageProcessor:
    """The same of Gemma 3n. Raises CheckpointError for squares that its encoder does not read."""
    made, vision = transformers_processor(_MODULE_3N, _CLASS_3N), config.vision
    given, step = fields.get("size") or {}, STRIDE * vision.side
    square = given if isinstance(given, Mapping) else {"height": None}
    side = square.get("height", PIXELS)
    if square.get("width", side) != side or side not in range(step, PIXELS + 1, step):
        raise CheckpointError(
            f"preprocessor_config.json: images have the size {given!r}",
            f"Give a square: its side is a multiple of {step}, of at most {PIXELS} pixels.",
        )
    looks = {"resample": 2, "do_normalize": bool(fields.get("do_normalize"))}
    looks |= given_looks(fields)
    return _Processor3n(made(size={"height": side, "width": side}, **looks), vision.side)


_MODULE_3N, _CLASS_3N = "siglip.image_processing_pil_siglip", "SiglipImageProcessorPil"


@frozen
class _Processor3n:
    made: Any
    side: int
    """Tokens of an image's side."""

    def __call__(self, image: Image) -> Pixels:
        """Return the part of each token, row by row."""
        pixels = np.asarray(self.made(images=[image], return_tensors="np")["pixel_values"][0])
        side, part = self.side, pixels.shape[1] // self.side
        cut = pixels.reshape(3, side, part, side, part).transpose(1, 3, 0, 2, 4)
        parts = np.ascontiguousarray(cut.reshape(side**2, -1), np.float32)
        return Pixels(parts, (1, side, side))


class Patches(Protocol):
    """A config of images that are cut into patches, of which some make a token."""

    @property
    def patch_size(self) -> int: ...
    @property
    def pooling_kernel_size(self) -> int: ...


_MODULE_4 = "gemma4.image_processing_pil_gemma4"


def processor4(config: SeeingGemma4Config, fields: Mapping[str, Any], most: int) -> ImageProcessor:
    """The same of Gemma 4. An image is scaled to as many tokens as its sides and `most` allow."""
    tokens = min(most, _soft_tokens(fields))
    made = transformers_processor(_MODULE_4, "Gemma4ImageProcessorPil")(**given_looks(fields))
    cut = transformers_processor(_MODULE_4, "convert_image_to_patches")
    return _Processor4(made, cut, config.vision, tokens, config.vision.patch_size)


def processor4_unified(
    config: UnifiedConfig, fields: Mapping[str, Any], most: int
) -> ImageProcessor:
    """The same of Gemma 4 12B, whose decoder reads the pixels of each token."""
    tokens = min(most, _soft_tokens(fields), config.patches.mm_posemb_size)
    made = transformers_processor(_MODULE_4, "Gemma4ImageProcessorPil")(**given_looks(fields))
    cut = transformers_processor(_MODULE_4, "convert_image_to_patches")
    return _Processor4(made, cut, config.patches, tokens, config.patches.side)


def _soft_tokens(fields: Mapping[str, Any]) -> int:
    """Return the most tokens of an image that a checkpoint allows. Raises CheckpointError."""
    tokens = fields.get("max_soft_tokens") or MOST_TOKENS
    if type(tokens) is not int or tokens < 1:
        raise CheckpointError(
            f"preprocessor_config.json: max_soft_tokens is {tokens!r}", "It must be at least 1."
        )
    return tokens


@frozen
class _Processor4:
    made: Any
    cut: Callable[[Any, int], Any]
    vision: Patches
    tokens: int
    cut_size: int
    """Pixels of the side of what is sent: a patch's, or a token's."""

    def __call__(self, image: Image) -> Pixels:
        """Return patches row by row. Not by `preprocess`, which allows few numbers of tokens, and
        pads."""
        made, size, merge = self.made, self.vision.patch_size, self.vision.pooling_kernel_size
        colours = np.asarray(image).transpose(2, 0, 1)
        scaled = made.aspect_ratio_preserving_resize(
            colours, size, self.tokens * merge**2, merge, made.resample
        )
        rescaled = made.rescale(image=scaled, scale=made.rescale_factor)
        patches = np.ascontiguousarray(self.cut(rescaled, self.cut_size), np.float32)
        rows, columns = (side // self.cut_size for side in scaled.shape[-2:])
        return Pixels(patches, (1, rows, columns))
