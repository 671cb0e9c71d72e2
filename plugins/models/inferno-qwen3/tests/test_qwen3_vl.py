"""Qwen3-VL, images included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import save_file

from inferno.errors import CheckpointError
from inferno.testing import TINY_TEXT, DeepEncoderFileTests, ImageTests, SeeingToy
from inferno_qwen3.config import Qwen3Config
from inferno_qwen3.vision_config import Qwen3VLConfig

pytest.importorskip("PIL")

MROPE = {
    "rope_type": "default",
    "mrope_interleaved": True,
    "mrope_section": [4, 2, 2],
    "rope_theta": 10_000.0,
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {**TINY_TEXT, "num_hidden_layers": 3, "rope_parameters": MROPE},
    "vision_config": {
        "depth": 4,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 48,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 2],
    },
    "image_token_id": 150,
    "video_token_id": 151,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
}


class Qwen3VL(SeeingToy):
    config = CONFIG
    sizes = ((128, 128), (96, 192), (64, 70))

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        inputs = Qwen2VLImageProcessorPil(patch_size=16)(images=list(images), return_tensors="pt")
        return {**inputs, "mm_token_type_ids": torch.tensor([[int(id == 150) for id in ids]])}


class TestQwen3VL(Qwen3VL, ImageTests):
    """Features of two layers, and a square of position embeddings that is smaller than one image's
    grid and larger than another's."""


PUBLISHED = {
    r"^model\.(language_model|visual)\.": "",
    r"\.self_attn\.([qkv])_proj\.": r".self_attn.to_\1.",
    r"\.self_attn\.o_proj\.": ".self_attn.to_out.",
    r"\.self_attn\.([qk])_norm\.": r".self_attn.norm_\1.",
}
BESIDE = ("layers.0.self_attn.add_q_proj", "layers.0.mlp_moe_gen.up_proj", "proj_in")


class TestCosmos3Omni(Qwen3VL, ImageTests):
    """What reasons in Cosmos 3 Omni, in a checkpoint with its published names: without a prefix,
    those of Diffusers, and tensors of what generates images."""

    config = {
        **CONFIG,
        "architectures": ["Cosmos3OmniForConditionalGeneration"],
        "model_type": "cosmos3_omni",
        "vision_config": {**CONFIG["vision_config"], "model_type": "qwen3_vl_vision"},
    }

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("cosmos")
        reference.save_pretrained(path)
        tensors = {f"{name}.weight": torch.ones(4, 4) for name in BESIDE}
        for name, tensor in reference.state_dict().items():
            for ours, theirs in PUBLISHED.items():
                name = re.sub(ours, theirs, name)
            tensors[name] = tensor.contiguous()
        assert {"layers.0.self_attn.to_q.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path


class TestFiles(Qwen3VL, DeepEncoderFileTests):
    """Qwen3-VL in two GGUF files, of the text model and of the encoder."""

    kind, text = "qwen3vl_merger", "qwen3vl"
    gguf_fields = {"mrope_section": [4, 2, 2, 0]}
    tokens = {150: "<|image_pad|>"}


class TestEveryLayerIsDeep(TestQwen3VL):
    """As many features as the decoder has layers: the last is added before the final norm."""

    config = {
        **CONFIG,
        "text_config": {**CONFIG["text_config"], "num_hidden_layers": 2},
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"deepstack_visual_indexes": [2, 0]}, "in order"),
        ({"deepstack_visual_indexes": [4]}, "deepstack_visual_indexes"),
        ({"deepstack_visual_indexes": [0, 1, 2]}, "3 layers have features"),
        ({"num_position_embeddings": 35}, "square"),
        ({"hidden_size": 36}, "multiple of 4"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"out_hidden_size": 32}, "out_hidden_size"),
    ],
)
def test_a_bad_encoder_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    vision = {**CONFIG["vision_config"], **damage}
    config = {**CONFIG["text_config"], "num_hidden_layers": 2, "vision_config": vision}
    with pytest.raises(CheckpointError, match=named):
        Qwen3VLConfig.from_json(config)


def test_what_the_text_model_does_not_say_is_as_without_images() -> None:
    """Defaults of the fields are of one class."""
    theirs = {each.name: each.default for each in attrs.fields(Qwen3Config)}
    ours = {each.name: each.default for each in attrs.fields(Qwen3VLConfig)}
    assert theirs.items() <= ours.items()
