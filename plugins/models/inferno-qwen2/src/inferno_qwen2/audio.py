"""Qwen2-Audio: a Qwen2 whose prompts have places for audio, and Whisper's encoder.

https://arxiv.org/abs/2407.10759; reference: transformers/models/qwen2_audio.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size, M
tokens of the audio, O the decoder's hidden size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, CausalLM, ImageInputs, Linear, SeeingDecoder, WhisperTower
from inferno_qwen2.audio_config import Qwen2AudioConfig
from inferno_qwen2.model import layers


class Qwen2AudioForConditionalGeneration(CausalLM):
    def __init__(self, config: Qwen2AudioConfig) -> None:
        inputs = ImageInputs(config.hidden_size)
        decoder = SeeingDecoder.of(config, layers(config), inputs=inputs)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.hearing = Hearing(config)


class Hearing(AudioEncoder):
    """Whisper's encoder, the mean of two neighbours, and a projection."""

    def __init__(self, config: Qwen2AudioConfig) -> None:
        super().__init__()
        self.audio_tower = WhisperTower(config.hearing)
        self.multi_modal_projector = nn.Module()
        linear = Linear(config.hearing.d_model, config.hidden_size, bias=True)
        self.multi_modal_projector.linear = linear

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (M, O)."""
        x_LD = self.audio_tower.states(frames_PW, (grid[2] - 1) // 2 + 1)
        x_MD = F.avg_pool1d(x_LD.t()[None], 2)[0].t()
        linear: nn.Module = self.multi_modal_projector.linear  # type: ignore[assignment]
        embeddings_MO: Tensor = linear(self.audio_tower.get_submodule("layer_norm")(x_MD))
        return embeddings_MO
