"""Qwen2.5-VL, images included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from inferno.testing import TINY_TEXT, EncoderFileTests, ImageTests, SeeingToy
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


class Qwen25VL(SeeingToy):
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

        inputs = Qwen2VLImageProcessorPil()(images=list(images), return_tensors="pt")
        return {**inputs, "mm_token_type_ids": torch.tensor([[int(id == 150) for id in ids]])}


class TestQwen25VL(Qwen25VL, ImageTests):
    pass


class TestFile(Qwen25VL, EncoderFileTests):
    """Qwen2.5-VL in two GGUF files, of the text model and of the encoder, in float32; the encoder
    also in F16 and Q8_0. Files say of how many layers the last has no window."""

    config = {**Qwen25VL.config, "vision_config": {**VISION, "fullatt_block_indexes": [1, 3]}}
    config["vision_config"]["depth"] = 4
    text = "qwen2vl"
    unsaid = frozenset({"max_window_layers"})
    gguf_fields = {"mrope_section": [2, 3, 3, 0]}
    lacking = "clip.vision.spatial_merge_size (2)"
    tokens = {150: "<|image_pad|>"}
    looks = {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }

    def keys(self, vision: Any) -> Mapping[str, Any]:
        return {
            "projector_type": "qwen2.5vl_merger",
            "use_silu": True,
            "vision.n_wa_pattern": 2,
            "vision.window_size": vision.window_size,
        }

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        if not name.startswith("visual."):
            return
        if ".qkv." in name:
            for letter, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("qkv", letter), rows
        elif name == "visual.patch_embed.proj.weight":
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        else:
            yield name, tensor


def test_what_the_text_model_does_not_say_is_as_without_images() -> None:
    """Defaults of the fields are of one class."""
    theirs = {each.name: each.default for each in attrs.fields(Qwen2Config)}
    ours = {each.name: each.default for each in attrs.fields(Qwen25VLConfig)}
    assert theirs.items() <= ours.items()
