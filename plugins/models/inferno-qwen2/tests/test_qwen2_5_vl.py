"""Qwen2.5-VL, images included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch

from inferno.testing import TINY_TEXT, ImageTests
from inferno_qwen2.config import Qwen2Config
from inferno_qwen2.vision_config import Qwen25VLConfig

pytest.importorskip("PIL")

VISION = {
    "depth": 3,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 48,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
"""A window has two tokens a side: images of the kit have several, and parts of some."""


class TestQwen25VL(ImageTests):
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "text_config": {
            **TINY_TEXT,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [2, 3, 3],
                "rope_theta": 10_000.0,
            },
        },
        "vision_config": VISION,
        "image_token_id": 150,
        "video_token_id": 151,
        "vision_start_token_id": 152,
        "vision_end_token_id": 153,
    }

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        found = Qwen2VLImageProcessorPil()(images=list(images), return_tensors="pt")
        return {**found, "mm_token_type_ids": torch.tensor([[int(id == 150) for id in ids]])}


def test_what_the_text_model_does_not_say_is_as_without_images() -> None:
    """Defaults of the fields are of one class."""
    theirs = {each.name: each.default for each in attrs.fields(Qwen2Config)}
    found = {each.name: each.default for each in attrs.fields(Qwen25VLConfig)}
    assert theirs.items() <= found.items()
