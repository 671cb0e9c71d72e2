"""Qwen3.5, images included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.testing import (
    TINY_TEXT,
    DeepEncoderFileTests,
    ImageTests,
    proposals,
    torch_only,
    transformers_model,
)
from inferno_qwen3_next.checkpoint import seeing
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

        inputs = Qwen2VLImageProcessorPil(patch_size=16)(images=list(images), return_tensors="pt")
        return {**inputs, "mm_token_type_ids": torch.tensor([[int(id == 150) for id in ids]])}


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


def one_head_each(config: dict[str, Any]) -> dict[str, Any]:
    """With one value head for each key head: of several, files have another order."""
    text = {**config["text_config"], "linear_num_value_heads": 2}
    vision = {**config["vision_config"], "deepstack_visual_indexes": []}
    return {**config, "text_config": text, "vision_config": vision}


class TestFiles(DeepEncoderFileTests):
    """Qwen3.5 in two GGUF files, of the text model and of the encoder."""

    config = one_head_each(CONFIG)
    sizes, inputs_of = TestQwen35.sizes, TestQwen35.inputs_of
    kind, text = "qwen3vl_merger", "qwen35"
    gguf_fields = {
        "mrope_section": [4, 2, 2, 0],
        "partial_rotary_factor": 0.5,
        "recurrent": [True, False, True, False],
        "inner_size": 64,
    }
    tokens = {150: "<|image_pad|>"}
    unsaid = frozenset({"num_nextn_predict_layers"})  # files say how many they have
    test_a_text_model_that_inferno_writes_is_still_the_encoder_s: Any = None  # it writes none


class TestMoeFiles(TestFiles):
    """The same of a mixture."""

    config = one_head_each(TestQwen35Moe.config)
    text = "qwen35moe"
    gguf_fields = {**TestFiles.gguf_fields, "num_experts": 4}


def test_layers_behind_the_last_of_a_pair_of_files_are_those_for_drafts(tmp_path: Path) -> None:
    """Files number them on; the text model's view has them under `mtp`, and so has this one."""
    names = ("model.layers.4.fc.weight", "model.layers.4.self_attn.q_proj.weight")
    others = ("model.embed_tokens.weight", "model.visual.merger.norm.weight")
    save_file({name: torch.ones(1) for name in (*names, *others)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with closing(seeing(torch_only().open(tmp_path)[1])) as view:
        assert sorted(view.tensors) == [
            "model.embed_tokens.weight",
            "mtp.fc.weight",
            "mtp.layers.0.self_attn.q_proj.weight",
            "visual.merger.norm.weight",
        ]


def test_what_the_text_model_does_not_say_is_as_without_images() -> None:
    """Defaults of the fields are of one class."""
    theirs = {each.name: each.default for each in attrs.fields(Qwen3NextConfig)}
    ours = {each.name: each.default for each in attrs.fields(SeeingQwen35Config)}
    assert theirs.items() <= ours.items()


def test_layers_of_multi_token_prediction_propose_what_they_do_of_text(tmp_path: Path) -> None:
    """What a decoder that sees reads of a step is not of their batches."""
    reference: Any = transformers_model(CONFIG, "AutoModelForImageTextToText")
    folder, inside = tmp_path / "seeing", "model.language_model."
    reference.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    attends = f"{inside}layers.1."
    extra = {n.removeprefix(attends): t for n, t in tensors.items() if n.startswith(attends)}
    extra = {f"mtp.layers.0.{name}": tensor.clone() for name, tensor in extra.items()}
    extra["mtp.fc.weight"] = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)) / 11
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        extra[f"mtp.{name}.weight"] = torch.zeros(64)
    text = {n.replace(inside, "model."): t for n, t in tensors.items() if "visual." not in n}
    save_file({**tensors, **extra}, folder / "model.safetensors")
    alone = tmp_path / "text"
    alone.mkdir()
    save_file({**text, **extra}, alone / "model.safetensors")
    config = {**CONFIG["text_config"], "architectures": ["Qwen3_5ForCausalLM"]}
    (alone / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    ours, theirs = (proposals(path, {"vocab_size": 160}) for path in (folder, alone))
    assert len(ours) == len(theirs) > 30
    assert all(one.drafts == other.drafts for one, other in zip(ours, theirs, strict=True))
