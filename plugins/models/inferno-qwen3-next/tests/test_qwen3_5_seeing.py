"""Qwen3.5, images included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import save_file

from inferno.testing import TINY_TEXT, ImageTests
from inferno_qwen3_next.config import Qwen3NextConfig
from inferno_qwen3_next.vision_config import SeeingQwen35Config

pytest.importorskip("PIL")

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        **TINY_TEXT,
        "model_type": "qwen3_5_text",
        "head_dim": 32,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
            "partial_rotary_factor": 0.5,
            "rope_theta": 10_000.0,
            "rope_type": "default",
        },
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 48,
        "num_position_embeddings": 36,
    },
    "image_token_id": 150,
    "video_token_id": 151,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
}


class TestQwen35(ImageTests):
    """Qwen3.5-27B: every second layer of this toy has a recurrent state, which goes through the
    images' positions."""

    config = CONFIG
    sizes = ((128, 128), (96, 192), (64, 70))

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        found = Qwen2VLImageProcessorPil(patch_size=16)(images=list(images), return_tensors="pt")
        return {**found, "mm_token_type_ids": torch.tensor([[int(id == 150) for id in ids]])}


class TestQwen35Moe(TestQwen35):
    """Qwen3.5-35B-A3B."""

    config = {
        **CONFIG,
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            **{k: v for k, v in CONFIG["text_config"].items() if k != "intermediate_size"},
            "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 48,
        },
    }

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """As published: experts in stacks, and layers that are not read."""
        path = tmp_path_factory.mktemp("seeing")
        tensors = {name: each.contiguous() for name, each in reference.state_dict().items()}
        assert any(name.endswith("experts.gate_up_proj") for name in tensors)
        save_file({**tensors, "mtp.fc.weight": torch.ones(2)}, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(cls.config))
        return path


def test_what_the_text_model_does_not_say_is_as_without_images() -> None:
    """Defaults of the fields are of one class."""
    theirs = {each.name: each.default for each in attrs.fields(Qwen3NextConfig)}
    found = {each.name: each.default for each in attrs.fields(SeeingQwen35Config)}
    assert theirs.items() <= found.items()
