"""Voxtral, audio included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import TINY_TEXT, AudioTests
from inferno_llama.audio_config import VoxtralConfig

CHUNK = 15_360
"""Samples of a chunk of 96 frames: 48 positions, of which four are a token."""
CONFIG: dict[str, Any] = {
    "architectures": ["VoxtralForConditionalGeneration"],
    "model_type": "voxtral",
    "text_config": {"model_type": "llama", **TINY_TEXT},
    "audio_config": {
        "model_type": "voxtral_encoder",
        "num_mel_bins": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "hidden_size": 32,
        "max_source_positions": 48,
    },
    "audio_token_id": 150,
}


def features_of(samples: Any) -> Tensor:
    """Return the spectrogram of each chunk, by transformers' own class, as its processor does."""
    from transformers import WhisperFeatureExtractor

    features = WhisperFeatureExtractor(feature_size=16)(
        samples,
        sampling_rate=16_000,
        padding="longest",
        truncation=False,
        pad_to_multiple_of=CHUNK,
        return_tensors="pt",
    )
    chunks: Tensor = features["input_features"].reshape(16, -1, 96).transpose(0, 1)
    return chunks


class TestVoxtral(AudioTests):
    """Voxtral with its audio, of one chunk and of two."""

    config = CONFIG
    seconds = (0.7, 1.5, 0.3)
    head = "AutoModelForMultimodalLM"

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        return {"input_features": torch.cat([features_of(samples) for samples in images])}

    def embeddings(self, reference: Any, samples_N: Any) -> Tensor:
        output = reference.get_audio_features(**self.inputs_of([samples_N]), return_dict=True)
        embeddings: Tensor = output.pooler_output
        return embeddings


@pytest.mark.parametrize(
    "changed", [{"intermediate_size": 100}, {"max_source_positions": 50}, {"hidden_size": 33}]
)
def test_a_token_is_a_whole_number_of_positions(changed: Mapping[str, int]) -> None:
    audio = {**CONFIG["audio_config"], **changed}
    with pytest.raises(CheckpointError, match="audio_config: "):
        VoxtralConfig.from_json({**CONFIG["text_config"], "audio_config": audio})
