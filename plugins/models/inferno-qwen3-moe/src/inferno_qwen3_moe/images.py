"""Prepares images for Qwen3-VL's mixtures, by transformers' own processor. Imports no torch."""

from __future__ import annotations

from inferno.configs import grid_processor

processor = grid_processor("qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil")
"""An `Architecture.images`."""
