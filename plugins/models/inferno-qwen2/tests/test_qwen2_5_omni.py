"""The thinker of Qwen2.5-Omni, images and audio included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import TINY_TEXT, AudioTests, ImageTests, SeeingToy
from inferno_qwen2.omni_config import Qwen25OmniConfig

pytest.importorskip("PIL")
pytest.importorskip("soundfile")

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
    "model_type": "qwen2_5_omni_thinker",
    "text_config": {
        **TINY_TEXT,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [2, 3, 3],
            "rope_theta": 10_000.0,
        },
    },
    "audio_config": {
        "model_type": "qwen2_5_omni_audio_encoder",
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "d_model": 32,
        "output_dim": 64,
        "n_window": 20,
    },
    "vision_config": {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 48,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    },
    "image_token_index": 150,
    "video_token_index": 151,
    "audio_token_index": 155,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
    "audio_start_token_id": 154,
    "audio_end_token_id": 156,
}
"""A window has 40 frames: pieces of audio of the kit have several, the last of them shorter. One of
the encoder of images has two tokens a side."""


class Omni(SeeingToy):
    config = CONFIG
    head = "AutoModelForMultimodalLM"
    opening = {"image": (152,), "audio": (154,)}

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        from transformers import WhisperFeatureExtractor
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        inputs: dict[str, Any] = {}
        if heard := [each for each in images if isinstance(each, np.ndarray)]:
            made = WhisperFeatureExtractor(feature_size=16, chunk_length=3)(
                heard,
                sampling_rate=16_000,
                padding="max_length",
                return_attention_mask=True,
                return_tensors="pt",
            )
            inputs["input_features"] = made["input_features"]
            inputs["feature_attention_mask"] = made["attention_mask"]
        if seen := [each for each in images if not isinstance(each, np.ndarray)]:
            inputs |= Qwen2VLImageProcessorPil()(images=seen, return_tensors="pt")
        return inputs


class TestAudio(Omni, AudioTests):
    """The thinker of Qwen2.5-Omni with its audio: windows, the last of them shorter."""

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        output = reference.get_audio_features(**self.inputs_of([samples_N]))
        embeddings: Tensor = output.pooler_output
        return embeddings


class TestImages(Omni, ImageTests):
    """The thinker of Qwen2.5-Omni with its images."""


class TestBoth(Omni, ImageTests):
    """Qwen2.5-Omni as published, the thinker beside what speaks, with images and audio in a
    prompt."""

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("whole")
        reference.save_pretrained(path)
        thinker = json.loads((path / "config.json").read_text())
        whole = {
            "architectures": ["Qwen2_5OmniModel"],
            "model_type": "qwen2_5_omni",
            "thinker_config": thinker,
            "talker_config": {"hidden_size": 16},
        }
        (path / "config.json").write_text(json.dumps(whole))
        stored = {f"thinker.{name}": tensor for name, tensor in reference.state_dict().items()}
        stored["thinker.audio_tower.audio_bos_eos_token.weight"] = torch.zeros(2, 64)
        stored["talker.model.norm.weight"] = torch.ones(16)
        tensors = {_published(name): tensor.clone() for name, tensor in stored.items()}
        save_file(tensors, path / "model.safetensors")
        return path

    @classmethod
    def prepared(cls, opened: Any, files: Any) -> Iterator[tuple[Any, Any]]:
        heard = list(islice(TestAudio.prepared(opened, files), 2))
        for i, seen in enumerate(super().prepared(opened, files)):
            yield heard[1] if i == 1 else seen


def _published(name: str) -> str:
    """Where published checkpoints have a tensor: the decoder under `model`, encoders beside it."""
    return (
        name.replace("thinker.model.language_model.", "thinker.model.")
        .replace("thinker.model.audio_tower.", "thinker.audio_tower.")
        .replace("thinker.model.visual.", "thinker.visual.")
    )


@pytest.mark.parametrize("changed", [{"output_dim": 32}, {"n_window": 15}])
def test_embeddings_are_as_wide_as_the_decoder_and_windows_have_whole_tokens(
    changed: Mapping[str, int],
) -> None:
    audio = {**CONFIG["audio_config"], **changed}
    with pytest.raises(CheckpointError, match="audio_config: output_dim"):
        Qwen25OmniConfig.from_json({**CONFIG, **CONFIG["text_config"], "audio_config": audio})
