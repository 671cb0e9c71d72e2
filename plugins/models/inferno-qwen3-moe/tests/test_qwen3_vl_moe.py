"""The mixtures of Qwen3-VL, images included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch

from inferno.testing import TINY_TEXT, DeepEncoderFileTests, ImageTests, SeeingToy
from inferno_qwen3_moe.config import Qwen3MoeConfig
from inferno_qwen3_moe.vision_config import Qwen3VLMoeConfig

pytest.importorskip("PIL")

MROPE = {
    "rope_type": "default",
    "mrope_interleaved": True,
    "mrope_section": [4, 2, 2],
    "rope_theta": 10_000.0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


class Qwen3VLMoe(SeeingToy):
    config = {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": {
            **TINY_TEXT,
            **EXPERTS,
            "num_hidden_layers": 3,
            "rope_parameters": MROPE,
        },
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "out_hidden_size": 64,
            "num_heads": 2,
            "intermediate_size": 48,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 1],
        },
        "image_token_id": 150,
        "video_token_id": 151,
        "vision_start_token_id": 152,
        "vision_end_token_id": 153,
    }
    sizes = ((128, 128), (96, 192), (64, 70))

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        inputs = Qwen2VLImageProcessorPil(patch_size=16)(images=list(images), return_tensors="pt")
        return {**inputs, "mm_token_type_ids": torch.tensor([[int(id == 150) for id in ids]])}


class TestQwen3VLMoe(Qwen3VLMoe, ImageTests):
    pass


class TestFiles(Qwen3VLMoe, DeepEncoderFileTests):
    """A mixture of Qwen3-VL in two GGUF files, of the text model and of the encoder."""

    kind, text = "qwen3vl_merger", "qwen3vlmoe"
    gguf_fields = {"mrope_section": [4, 2, 2, 0], **EXPERTS}
    tokens = {150: "<|image_pad|>"}


def test_what_the_text_model_does_not_say_is_as_without_images() -> None:
    """Defaults of the fields are of one class."""
    theirs = {each.name: each.default for each in attrs.fields(Qwen3MoeConfig)}
    ours = {each.name: each.default for each in attrs.fields(Qwen3VLMoeConfig)}
    assert theirs.items() <= ours.items()
