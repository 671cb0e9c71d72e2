"""The thinker of Qwen2.5-Omni with its audio: a Qwen2.5, and Whisper's encoder with windows.

https://arxiv.org/abs/2503.20215; reference: transformers/models/qwen2_5_omni.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size, M
tokens of the audio, O the decoder's hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, CausalLM, ImageInputs, Linear, SeeingDecoder, WhisperTower
from inferno_qwen2.model import layers
from inferno_qwen2.omni_config import Qwen25OmniConfig, WindowedMelConfig


class Qwen25OmniThinker(CausalLM):
    def __init__(self, config: Qwen25OmniConfig) -> None:
        inputs = ImageInputs(config.hidden_size)
        decoder = SeeingDecoder.of(config, layers(config), inputs=inputs)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.hearing = Hearing(config.hearing)


class Hearing(AudioEncoder):
    """Whisper's encoder, window by window, the mean of two neighbours, and a projection."""

    def __init__(self, config: WindowedMelConfig) -> None:
        super().__init__()
        self.window = 2 * config.n_window
        self.audio_tower = WhisperTower(config, learned=False, norm="ln_post")
        self.audio_tower.proj = Linear(config.d_model, config.output_dim, bias=True)

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (M, O)."""
        tower = self.audio_tower
        windows = frames_PW.split(self.window)
        x_LD = torch.cat([tower.states(each, (len(each) - 1) // 2 + 1) for each in windows])
        x_MD = F.avg_pool1d(x_LD.t()[None], 2)[0].t()
        embeddings_MO: Tensor = tower.get_submodule("proj")(tower.get_submodule("ln_post")(x_MD))
        return embeddings_MO
