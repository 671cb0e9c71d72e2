"""The thinker of Qwen2.5-Omni: a Qwen2.5-VL that hears, by Whisper's encoder with windows.

https://arxiv.org/abs/2503.20215; reference: transformers/models/qwen2_5_omni.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size, M
tokens of the audio, O the decoder's hidden size; of an image, P patches, H heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import Grid
from inferno.nn import (
    AudioEncoder,
    CausalLM,
    Linear,
    SeeingDecoder,
    VisionAttention,
    WhisperTower,
    grid_inputs,
)
from inferno_qwen2.model import layers
from inferno_qwen2.omni_config import Qwen25OmniConfig, WindowedMelConfig
from inferno_qwen2.vision import VisionTower
from inferno_qwen2.vision_config import WindowedVisionConfig


class Qwen25OmniThinker(CausalLM):
    def __init__(self, config: Qwen25OmniConfig) -> None:
        decoder = SeeingDecoder.seeing(config, layers(config), grid_inputs(config))
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = VisionTower(config.vision, ApartAttention)
        self.hearing = Hearing(config.hearing)


class ApartAttention(VisionAttention):
    """With a matrix each for queries, keys and values."""

    def __init__(self, config: WindowedVisionConfig) -> None:
        super().__init__(config)
        del self.qkv
        for name in "qkv":
            self.add_module(name, Linear(config.hidden_size, config.hidden_size, bias=True))

    def heads(self, x_PD: Tensor) -> Sequence[Tensor]:
        matrices = (self.get_submodule(name) for name in "qkv")
        return [each(x_PD).unflatten(1, (self.num_heads, -1)) for each in matrices]


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
