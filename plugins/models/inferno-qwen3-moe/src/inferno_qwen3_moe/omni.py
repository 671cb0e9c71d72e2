"""The thinker of Qwen3-Omni: a mixture of Qwen3-VL that hears.

https://arxiv.org/abs/2509.17765; reference: transformers/models/qwen3_omni_moe.

Suffixes: P frames of a spectrogram, W mel bins, B parts of 2 `n_window` frames, C channels, L
positions of the encoder, D its hidden size, O the decoder's hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, DeepstackLM, LayerNorm, Linear, WhisperLayer, sines
from inferno_qwen3_moe.model import layer
from inferno_qwen3_moe.omni_config import Qwen3OmniMoeConfig, StridedMelConfig

EPS = 1e-5
"""Of the encoder of audio."""


class Qwen3OmniMoeThinker(DeepstackLM):
    def __init__(self, config: Qwen3OmniMoeConfig) -> None:
        super().__init__(config, layer)
        self.hearing = Hearing(config.hearing)


class Hearing(AudioEncoder):
    """Convolutions of one second, position embeddings in each, and attention in windows."""

    def __init__(self, config: StridedMelConfig) -> None:
        super().__init__()
        self.config = config
        self.audio_tower = AudioTower(config)

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (L, O)."""
        tower, size = self.audio_tower, 2 * self.config.n_window
        parts = list(frames_PW.split(size))
        counts = [self.config.positions(len(part)) for part in parts]
        if len(parts) > 1:  # the last one is filled with zeros, as if it were whole
            parts[-1] = F.pad(parts[-1], (0, 0, 0, size - len(parts[-1])))
        x_LD = torch.cat([tower.strided(part)[:n] for part, n in zip(parts, counts, strict=True)])
        whole = self.config.n_window_infer // size * counts[0]
        embeddings_LO = torch.cat([tower(window_LD) for window_LD in x_LD.split(whole)])
        return embeddings_LO


class AudioTower(nn.Module):
    def __init__(self, config: StridedMelConfig) -> None:
        super().__init__()
        width, channels = config.d_model, config.downsample_hidden_size
        self.conv2d1 = Convolution(1, channels)
        self.conv2d2 = Convolution(channels, channels)
        self.conv2d3 = Convolution(channels, channels)
        self.conv_out = Linear(channels * config.bands, width, bias=False)
        self.layers = nn.ModuleList(
            WhisperLayer(config, key_bias=True) for _ in range(config.encoder_layers)
        )
        self.ln_post = LayerNorm(width, EPS)
        self.proj1 = Linear(width, width, bias=True)
        self.proj2 = Linear(width, config.output_dim, bias=True)

    def strided(self, frames_PW: Tensor) -> Tensor:
        """Return the positions of a part, (L, D)."""
        x_1CWP = frames_PW.t()[None, None].to(self.conv2d1.weight.dtype)
        for convolution in (self.conv2d1, self.conv2d2, self.conv2d3):
            x_1CWP = F.gelu(convolution(x_1CWP))
        x_LD: Tensor = self.conv_out(x_1CWP[0].permute(2, 0, 1).flatten(1))
        return x_LD + sines(*x_LD.shape).to(x_LD)

    def forward(self, x_LD: Tensor) -> Tensor:
        """Return the embeddings of a window, (L, O)."""
        for each in self.layers:
            x_LD = each(x_LD)
        y_LO: Tensor = self.proj2(F.gelu(self.proj1(self.ln_post(x_LD))))
        return y_LO


class Convolution(nn.Module):
    """Of 3 x 3 neighbours, each second one in time and in frequency."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x_1CWP: Tensor) -> Tensor:
        return F.conv2d(x_1CWP, self.weight, self.bias, stride=2, padding=1)
