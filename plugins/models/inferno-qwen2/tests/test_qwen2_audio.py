"""Qwen2-Audio, audio included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inferno.testing import TINY_TEXT, AudioTests
from inferno_qwen2.audio_config import Qwen2AudioConfig

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2AudioForConditionalGeneration"],
    "model_type": "qwen2_audio",
    "text_config": {"model_type": "qwen2", **TINY_TEXT},
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "d_model": 32,
        "max_source_positions": 50,
    },
    "audio_token_index": 150,
}
"""It hears one second."""


class TestQwen2Audio(AudioTests):
    """Qwen2-Audio with its audio, of the whole second that it hears and of less."""

    config = CONFIG

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        from transformers import WhisperFeatureExtractor

        features = WhisperFeatureExtractor(feature_size=16)(
            list(images),
            sampling_rate=16_000,
            max_length=16_000,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="pt",
        )
        mask = features["attention_mask"]
        return {"input_features": features["input_features"], "feature_attention_mask": mask}

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        given, model = self.inputs_of([samples_N]), reference.model
        heard = int(given["feature_attention_mask"].sum())
        positions, count = ((heard - 1) // 2 + 1, ((heard - 1) // 2 - 1) // 2 + 1)
        mask = torch.arange(50)[None, None, None] < positions
        audio = model.audio_tower(given["input_features"], attention_mask=mask.expand(1, 1, 50, 50))
        embeddings: Tensor = model.multi_modal_projector(audio.last_hidden_state)
        return embeddings[0, :count]


def test_a_text_model_that_says_little_is_read_as_transformers_reads_it() -> None:
    from transformers import Qwen2Config

    fields: dict[str, Any] = {
        "intermediate_size": 11_008,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000,
        "vocab_size": 156_032,
    }
    ours, theirs = Qwen2AudioConfig.from_json(fields), Qwen2Config(**fields)
    names = (*fields.keys() - {"rope_theta"}, "hidden_size", "num_hidden_layers")
    for name in (*names, "num_attention_heads", "num_key_value_heads"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.hearing.seconds == 30 and ours.audio_chunk == (30, 750)
