"""The encoder of audio of Gemma 3n: a Conformer with windows, of which each fourth position is
read.

https://arxiv.org/abs/2303.01037; reference: transformers/models/gemma3n.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size,
H heads, C channels or head dim, R distances of a window, M tokens of audio, O the decoder's hidden
size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, Linear, RMSNorm
from inferno_gemma.audio3n_config import AudioConfig
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
from inferno_gemma.token_embeddings import MediaEmbedder


class Hearing(AudioEncoder):
    def __init__(self, config: AudioConfig, out: int, last: int) -> None:
        """`last` is the token in the place of what is not heard."""
        super().__init__()
        self.tokens, self.last = config.tokens, last
        self.audio_tower = AudioTower(config)
        self.embed_audio = MediaEmbedder(config, out)

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (M, O): those of a token behind what is
        heard."""
        heard_LO = self.embed_audio(self.audio_tower(frames_PW))
        fill_1O = self.embed_audio.of_tokens(torch.tensor([self.last], device=heard_LO.device))
        return torch.cat([heard_LO, fill_1O.expand(self.tokens - len(heard_LO), -1)])


class AudioTower(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.subsample_conv_projection = Subsample(
            ("conv_0", "conv_1"),
            Convolution,
            config.sscp_conv_channel_size,
            config.input_feat_size,
            config.hidden_size,
            config.sscp_conv_group_norm_eps,
        )
        layers = range(config.conf_num_hidden_layers)
        self.conformer = nn.ModuleList(AudioLayer(config) for _ in layers)

    def forward(self, frames_PW: Tensor) -> Tensor:
        x_LD = self.subsample_conv_projection(frames_PW)
        places_RD = distances(self.config.past, self.config.hidden_size).to(x_LD)
        for layer in self.conformer:
            x_LD = layer(x_LD, places_RD)
        y_LD: Tensor = x_LD[:: self.config.conf_reduction_factor]
        return y_LD


class Convolution(Strided):
    """It pads the end of time only. The norm is by mean and variance of all frames up to each."""

    def forward(self, x_1CPW: Tensor) -> Tensor:
        filters, weight_C = self.weights
        h_1CPW = F.pad(x_1CPW, (1, 1, 0, 2)).to(filters.dtype)
        h_1CPW = F.conv2d(h_1CPW, filters, stride=2)
        x_PWC = h_1CPW[0].permute(1, 2, 0).float()
        count_P = torch.arange(1, len(x_PWC) + 1, device=x_PWC.device) * x_PWC[0].numel()
        centred_PWC = x_PWC - _so_far(x_PWC, count_P)
        variance_P11 = _so_far(centred_PWC.square(), count_P)
        x_PWC = centred_PWC * torch.rsqrt(variance_P11 + self.eps) * weight_C.float()
        return F.relu(x_PWC.to(h_1CPW.dtype)).permute(2, 0, 1)[None]


def _so_far(x_PWC: Tensor, count_P: Tensor) -> Tensor:
    """Return the mean of all numbers up to each frame, (P, 1, 1)."""
    return (x_PWC.sum((1, 2)).cumsum(0) / count_P)[:, None, None]


class AudioLayer(nn.Module):
    """Half an MLP, attention, a convolution, and half an MLP again."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.most, size = config.gradient_clipping, config.hidden_size
        more: dict[str, Any] = {"most": self.most, "product": Linear}
        weight = config.conf_residual_weight
        self.ffw_layer_start = FeedForward(size, weight=weight, **more)
        self.ffw_layer_end = FeedForward(size, weight=weight, **more)
        self.attention = AudioAttention(config)
        width = config.conf_conv_kernel_size
        self.lconv1d = LightConvolution(size, width, eps=config.rms_norm_eps, **more)
        self.norm = RMSNorm(size, EPS)

    def forward(self, x_LD: Tensor, places_RD: Tensor) -> Tensor:
        x_LD = self.attention(self.ffw_layer_start(x_LD), places_RD)
        x_LD = self.ffw_layer_end(self.lconv1d(x_LD))
        y_LD: Tensor = self.norm(limited(x_LD, self.most))
        return y_LD


class AudioAttention(nn.Module):
    """Attention to the last positions, in float32, with a score for each distance."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.heads = config.conf_num_attention_heads
        self.dim = size // self.heads
        self.pre_attn_norm, self.post_norm = RMSNorm(size, EPS), RMSNorm(size, EPS)
        self.attn, self.post = nn.Module(), Linear(size, size)
        for name in ("query", "key", "value"):
            self.attn.add_module(name, Linear(size, size))
        self.attn.per_dim_scale = nn.Parameter(torch.empty(self.dim))
        self.attn.relative_position_embedding = nn.Module()
        self.attn.relative_position_embedding.pos_proj = Linear(size, size)

    def forward(self, x_LD: Tensor, places_RD: Tensor) -> Tensor:
        attn, most, heads = self.attn, self.config.gradient_clipping, (self.heads, self.dim)
        scale_C: Tensor = attn.per_dim_scale  # type: ignore[assignment]  # a Parameter
        h_LD = self.pre_attn_norm(limited(x_LD, most))
        q_LHC, k_LHC, v_LHC = (
            attn.get_submodule(name)(h_LD).float().unflatten(1, heads)
            for name in ("query", "key", "value")
        )
        project = attn.get_submodule("relative_position_embedding.pos_proj")
        y_LHC = attended(
            scaled(q_LHC, scale_C),
            k_LHC,
            v_LHC,
            project(places_RD).float().unflatten(1, heads),
            cap=self.config.conf_attention_logit_cap,
            farthest=True,
        )
        h_LD = limited(self.post(y_LHC.flatten(1).to(x_LD.dtype)), most)
        y_LD: Tensor = x_LD + self.post_norm(h_LD)
        return y_LD
