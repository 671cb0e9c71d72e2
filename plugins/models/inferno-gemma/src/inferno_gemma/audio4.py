"""The encoder of audio of Gemma 4: a Conformer with windows.

https://arxiv.org/abs/2303.01037; reference: transformers/models/gemma4.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size,
H heads, C head dim, R distances of a window, O the decoder's hidden size.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, Linear, RMSNorm
from inferno_gemma.audio4_config import AudioConfig
from inferno_gemma.clipped import Clipped, Projector
from inferno_gemma.conformer import (
    EPS,
    FeedForward,
    LightConvolution,
    Strided,
    Subsample,
    attended,
    distances,
    limited,
    scaled,
)


class Hearing(AudioEncoder):
    def __init__(self, config: AudioConfig, out: int) -> None:
        super().__init__()
        self.audio_tower = AudioTower(config)
        self.embed_audio = Projector(config.output_proj_dims, config.rms_norm_eps, out)

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (L, O)."""
        embeddings_LO: Tensor = self.embed_audio(self.audio_tower(frames_PW))
        return embeddings_LO


class AudioTower(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.subsample_conv_projection = Subsample(
            ("layer0", "layer1"),
            Convolution,
            config.subsampling_conv_channels,
            config.bins,
            config.hidden_size,
            config.rms_norm_eps,
        )
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.num_hidden_layers))
        self.output_proj = Linear(config.hidden_size, config.output_proj_dims, bias=True)

    def forward(self, frames_PW: Tensor) -> Tensor:
        x_LD = self.subsample_conv_projection(frames_PW)
        places_RD = distances(self.config.past, self.config.hidden_size).to(x_LD)
        for layer in self.layers:
            x_LD = layer(x_LD, places_RD)
        y_LD: Tensor = self.output_proj(x_LD)
        return y_LD


class Convolution(Strided):
    def forward(self, x_1CPW: Tensor) -> Tensor:
        filters, weight_C = self.weights
        x_1CPW = F.conv2d(x_1CPW.to(filters.dtype), filters, stride=2, padding=1)
        x_1PWC = F.layer_norm(x_1CPW.permute(0, 2, 3, 1), weight_C.shape, weight_C, eps=self.eps)
        return F.relu(x_1PWC).permute(0, 3, 1, 2)


class AudioLayer(nn.Module):
    """Half an MLP, attention, a convolution, and half an MLP again."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.most, size = config.gradient_clipping, config.hidden_size
        product = partial(Clipped, config)
        self.feed_forward1, self.feed_forward2 = (
            FeedForward(size, weight=config.residual_weight, most=self.most, product=product)
            for _ in range(2)
        )
        self.self_attn = AudioAttention(config)
        self.lconv1d = LightConvolution(
            size,
            config.conv_kernel_size,
            eps=config.rms_norm_eps,
            most=self.most,
            product=product,
        )
        self.norm_pre_attn = RMSNorm(size, EPS)
        self.norm_post_attn = RMSNorm(size, EPS)
        self.norm_out = RMSNorm(size, EPS)

    def forward(self, x_LD: Tensor, places_RD: Tensor) -> Tensor:
        x_LD = self.feed_forward1(x_LD)
        h_LD = self.self_attn(self.norm_pre_attn(limited(x_LD, self.most)), places_RD)
        x_LD = x_LD + self.norm_post_attn(limited(h_LD, self.most))
        x_LD = self.feed_forward2(self.lconv1d(x_LD))
        y_LD: Tensor = self.norm_out(limited(x_LD, self.most))
        return y_LD


class AudioAttention(nn.Module):
    """Attention to the last positions, in float32, with a score for each distance."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.heads, self.dim = config.num_attention_heads, size // config.num_attention_heads
        self.q_proj = Clipped(config, size, size)
        self.k_proj = Clipped(config, size, size)
        self.v_proj = Clipped(config, size, size)
        self.post = Clipped(config, size, size)
        self.relative_k_proj = Linear(size, size)
        self.per_dim_scale = nn.Parameter(torch.empty(self.dim))

    def forward(self, x_LD: Tensor, places_RD: Tensor) -> Tensor:
        heads = self.heads, self.dim
        q_LHC, k_LHC, v_LHC = (
            product(x_LD).float().unflatten(1, heads)
            for product in (self.q_proj, self.k_proj, self.v_proj)
        )
        k_LHC = k_LHC * (math.log(1 + math.e) / math.log(2))
        y_LHC = attended(
            scaled(q_LHC, self.per_dim_scale),
            k_LHC,
            v_LHC,
            self.relative_k_proj(places_RD).float().unflatten(1, heads),
            cap=self.config.attention_logit_cap,
            farthest=False,
        )
        y_LD: Tensor = self.post(y_LHC.flatten(1).to(x_LD.dtype))
        return y_LD
