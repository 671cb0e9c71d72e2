"""The thinker of Qwen3-Omni, images and audio included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import TINY_TEXT, AudioTests, ImageTests, SeeingToy
from inferno_qwen3_moe.omni_config import Qwen3OmniMoeConfig

pytest.importorskip("PIL")
pytest.importorskip("soundfile")

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"],
    "model_type": "qwen3_omni_moe_thinker",
    "text_config": {
        **TINY_TEXT,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 3,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_theta": 10_000.0,
        },
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
    "audio_config": {
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "d_model": 32,
        "n_window_infer": 200,
        "downsample_hidden_size": 8,
        "output_dim": 64,
    },
    "image_token_id": 150,
    "video_token_id": 151,
    "audio_token_id": 155,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
    "audio_start_token_id": 154,
    "audio_end_token_id": 156,
}


class Omni(SeeingToy):
    config = CONFIG
    head = "AutoModelForMultimodalLM"
    opening = {"image": (152,), "audio": (154,)}
    sizes = ((128, 128), (96, 192), (64, 70))

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        from transformers import WhisperFeatureExtractor
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        inputs: dict[str, Any] = {}
        if heard := [each for each in images if isinstance(each, np.ndarray)]:
            made = WhisperFeatureExtractor(feature_size=16, chunk_length=4)(
                heard,
                sampling_rate=16_000,
                padding="max_length",
                return_attention_mask=True,
                return_tensors="pt",
            )
            inputs["input_features"] = made["input_features"]
            inputs["feature_attention_mask"] = made["attention_mask"]
        if seen := [each for each in images if not isinstance(each, np.ndarray)]:
            inputs |= Qwen2VLImageProcessorPil(patch_size=16)(images=seen, return_tensors="pt")
        return inputs


class TestImages(Omni, ImageTests):
    """The thinker of Qwen3-Omni with its images, whose features are added after two layers."""


class TestAudio(Omni, AudioTests):
    """The thinker of Qwen3-Omni with its audio, of windows of two seconds and of less."""

    # Of more than a second: how transformers fills what is shorter depends on its batch.
    seconds = (1.1, 2.4, 1.02)

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        output = reference.get_audio_features(**self.inputs_of([samples_N]))
        embeddings: Tensor = output.pooler_output
        return embeddings


WEIGHTS = "model.safetensors"


def _published(name: str) -> str:
    """Where published checkpoints have a tensor: the decoder under `model`, encoders beside it."""
    name = name.replace("model.language_model.", "model.")
    for encoder in ("audio_tower.", "visual."):
        name = name.replace(f"model.{encoder}", encoder)
    return f"thinker.{name}"


class TestBoth(Omni, ImageTests):
    """Qwen3-Omni as published, the thinker beside what speaks, with images and audio in a
    prompt."""

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("whole")
        reference.save_pretrained(path)
        whole = {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "model_type": "qwen3_omni_moe",
            "thinker_config": json.loads((path / "config.json").read_text()),
        }
        (path / "config.json").write_text(json.dumps(whole))
        stored = {_published(name): tensor for name, tensor in load_file(path / WEIGHTS).items()}
        save_file({**stored, "talker.model.norm.weight": torch.ones(16)}, path / WEIGHTS)
        return path

    @classmethod
    def prepared(cls, opened: Any, files: Any) -> Iterator[tuple[Any, Any]]:
        heard = list(islice(TestAudio.prepared(opened, files), 2))
        for i, seen in enumerate(super().prepared(opened, files)):
            yield heard[1] if i == 1 else seen


@pytest.mark.parametrize("changed", [{"output_dim": 32}, {"n_window_infer": 150}])
def test_embeddings_are_as_wide_as_the_decoder_and_windows_have_whole_parts(
    changed: Mapping[str, int],
) -> None:
    audio = {**CONFIG["audio_config"], **changed}
    whole = {**CONFIG, **CONFIG["text_config"], "audio_config": audio}
    with pytest.raises(CheckpointError, match="audio_config: output_dim"):
        Qwen3OmniMoeConfig.from_json(whole)
