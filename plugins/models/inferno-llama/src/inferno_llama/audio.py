"""Voxtral: a Llama whose prompts have places for audio, and Whisper's encoder.

https://arxiv.org/abs/2507.13264; reference: transformers/models/voxtral.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size, M
tokens of the audio, O the decoder's hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, CausalLM, ImageInputs, Linear, SeeingDecoder, WhisperTower
from inferno_llama.audio_config import VoxtralConfig
from inferno_llama.model import layers


class VoxtralForConditionalGeneration(CausalLM):
    def __init__(self, config: VoxtralConfig) -> None:
        inputs = ImageInputs(config.hidden_size)
        decoder = SeeingDecoder.of(config, layers(config), inputs=inputs)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.hearing = Hearing(config)


class Hearing(AudioEncoder):
    """Whisper's encoder, chunk by chunk, and what makes a token of some of its positions."""

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        self.config = config
        self.audio_tower = WhisperTower(config.hearing)
        self.multi_modal_projector = Projector(config)

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (M, O)."""
        count = self.config.hearing.max_source_positions
        chunks = frames_PW.unflatten(0, (grid[0], grid[1])).unbind()
        embeddings_MO = torch.cat([self._chunk(chunk_PW, count) for chunk_PW in chunks])
        return embeddings_MO

    def _chunk(self, frames_PW: Tensor, count: int) -> Tensor:
        norm = self.audio_tower.get_submodule("layer_norm")
        x_LD = norm(self.audio_tower.states(frames_PW, count))
        embeddings_MO: Tensor = self.multi_modal_projector(
            x_LD.reshape(-1, self.config.hearing.encoder_ffn_dim)
        )
        return embeddings_MO


class Projector(nn.Module):
    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.linear_1 = Linear(config.hearing.encoder_ffn_dim, width, bias=False)
        self.linear_2 = Linear(width, width, bias=False)

    def forward(self, x_MD: Tensor) -> Tensor:
        y_MO: Tensor = self.linear_2(F.gelu(self.linear_1(x_MD)))
        return y_MO
