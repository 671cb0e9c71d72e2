"""The encoder of audio that is Whisper's (arXiv:2212.04356): two convolutions over a spectrogram,
position embeddings, and layers of attention in both directions.

Reference: transformers/models/qwen2_audio, voxtral.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size, H
heads, C head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import MelConfig
from inferno.nn.linear import Linear
from inferno.nn.norm import LayerNorm
from inferno.nn.vision import VisionMLP

EPS = 1e-5


class WhisperTower(nn.Module):
    """The encoder. Tensors are named as in checkpoints, but for matrices that a decoder has too: no
    rank divides those here (`configs.heard`)."""

    def __init__(
        self, config: MelConfig, *, learned: bool = True, norm: str = "layer_norm"
    ) -> None:
        """Position embeddings are `learned`, or sines. `norm` is the name of the last one."""
        super().__init__()
        self.width = width = config.d_model
        self.conv1 = Convolution(config.num_mel_bins, width)
        self.conv2 = Convolution(width, width, stride=2)
        self.embed_positions: nn.Module | None = None
        if learned:
            shape = config.max_source_positions, width
            self.embed_positions = nn.Module()
            self.embed_positions.weight = nn.Parameter(torch.empty(shape))
        self.layers = nn.ModuleList(WhisperLayer(config) for _ in range(config.encoder_layers))
        self.add_module(norm, LayerNorm(width, EPS))

    def states(self, frames_PW: Tensor, count: int) -> Tensor:
        """Return the states of a chunk's first `count` positions before the last norm, (L, D).
        Later ones are silence that fills the chunk: nothing attends to it."""
        x_1WP = frames_PW.t()[None].to(self.conv1.weight.dtype)
        x_1DL = F.gelu(self.conv2(F.gelu(self.conv1(x_1WP))))
        x_LD = x_1DL[0, :, :count].t()
        if self.embed_positions is None:
            x_LD = x_LD + sines(len(x_LD), self.width).to(x_LD)
        else:
            places: Any = self.embed_positions.weight
            x_LD = x_LD + places[:count]
        for layer in self.layers:
            x_LD = layer(x_LD)
        states_LD: Tensor = x_LD
        return states_LD


class Convolution(nn.Module):
    """Of three neighbours in time."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x_1WP: Tensor) -> Tensor:
        return F.conv1d(x_1WP, self.weight, self.bias, stride=self.stride, padding=1)


class WhisperLayer(nn.Module):
    def __init__(self, config: MelConfig, *, key_bias: bool = False) -> None:
        super().__init__()
        self.self_attn = WhisperAttention(config, key_bias=key_bias)
        self.self_attn_layer_norm = LayerNorm(config.d_model, EPS)
        self.final_layer_norm = LayerNorm(config.d_model, EPS)
        self.mlp = VisionMLP(config.d_model, config.encoder_ffn_dim, approximate="none")

    def forward(self, x_LD: Tensor) -> Tensor:
        x_LD = x_LD + self.self_attn(self.self_attn_layer_norm(x_LD))
        x_LD = x_LD + self.mlp(self.final_layer_norm(x_LD))
        if x_LD.dtype == torch.float16:  # trained in bfloat16, some states exceed it
            most = torch.finfo(torch.float16).max - 1000
            x_LD = x_LD.clamp(-most, most)
        return x_LD


class WhisperAttention(nn.Module):
    """Among all positions, in both directions."""

    def __init__(self, config: MelConfig, *, key_bias: bool) -> None:
        super().__init__()
        self.num_heads, width = config.encoder_attention_heads, config.d_model
        self.q = Linear(width, width, bias=True)
        self.k = Linear(width, width, bias=key_bias)
        self.v = Linear(width, width, bias=True)
        self.out = Linear(width, width, bias=True)

    def forward(self, x_LD: Tensor) -> Tensor:
        heads = (
            each(x_LD).unflatten(1, (self.num_heads, -1)).transpose(0, 1)[None]
            for each in (self.q, self.k, self.v)
        )
        y_1HLC = F.scaled_dot_product_attention(*heads)
        y_LD: Tensor = self.out(y_1HLC[0].transpose(0, 1).flatten(1))
        return y_LD


def sines(count: int, width: int) -> Tensor:
    """Return position embeddings, (L, D): sines, then cosines, of waves from 2 pi to 20 000 pi
    long."""
    half = width // 2
    rate = math.log(10_000) / (half - 1)
    angles = torch.arange(count)[:, None] * torch.exp(-rate * torch.arange(half).float())
    return torch.cat([angles.sin(), angles.cos()], dim=1)
