"""Prepares images for Qwen3.5, by transformers' own processor. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs import grid_processor, transformers_processor
from inferno.contracts import ImageProcessor
from inferno_qwen3_next.vision_config import SeeingQwen35Config

_MODULE, _CLASS = "qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil"


def processor(config: SeeingQwen35Config, fields: Mapping[str, Any], most: int) -> ImageProcessor:
    """An `Architecture.images`. Raises UnsupportedError where transformers or Pillow is missing."""
    made = transformers_processor(_MODULE, _CLASS)
    return grid_processor(made, config.vision, fields, most)
