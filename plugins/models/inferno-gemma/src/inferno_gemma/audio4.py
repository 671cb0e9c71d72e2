"""The encoder of audio of Gemma 4: a Conformer with windows.

https://arxiv.org/abs/2303.01037; reference: transformers/models/gemma4.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size,
H heads, C head dim, R distances of a window, O the decoder's hidden size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import AudioEncoder, Linear, RMSNorm
from inferno_gemma.audio4_config import AudioConfig
from inferno_gemma.clipped import Clipped, Projector

EPS = 1e-6
"""Of the norms that do not read the config's."""
EXCLUDED = -1e9
"""The score of what is not attended to."""


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
        self.subsample_conv_projection = Subsample(config)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.num_hidden_layers))
        self.output_proj = Linear(config.hidden_size, config.output_proj_dims, bias=True)

    def forward(self, frames_PW: Tensor) -> Tensor:
        x_LD = self.subsample_conv_projection(frames_PW)
        places_RD = distances(self.config).to(x_LD)
        for layer in self.layers:
            x_LD = layer(x_LD, places_RD)
        y_LD: Tensor = self.output_proj(x_LD)
        return y_LD


def distances(config: AudioConfig) -> Tensor:
    """Return embeddings of the distances of a window, sines, then cosines, (R, D): the farthest
    first, none last."""
    half = config.hidden_size // 2
    rate = math.log(10_000) / max(half - 1, 1)
    waves = torch.exp(torch.arange(half) * -rate)
    angles = torch.arange(config.past, -1, -1)[:, None] * waves
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Subsample(nn.Module):
    """Two convolutions of 3 x 3 neighbours, each second one in time and in frequency, and a
    product."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        first, second = config.subsampling_conv_channels
        self.layer0 = Strided(1, first, config.rms_norm_eps)
        self.layer1 = Strided(first, second, config.rms_norm_eps)
        inputs = config.bins // 4 * second
        self.input_proj_linear = Linear(inputs, config.hidden_size)

    def forward(self, frames_PW: Tensor) -> Tensor:
        x_1CLW = self.layer1(self.layer0(frames_PW[None, None]))
        x_LD: Tensor = self.input_proj_linear(x_1CLW[0].permute(1, 2, 0).flatten(1))
        return x_LD


class Strided(nn.Module):
    def __init__(self, inputs: int, outputs: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.conv, self.norm = nn.Module(), nn.Module()
        self.conv.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.norm.weight = nn.Parameter(torch.empty(outputs))

    def forward(self, x_1CPW: Tensor) -> Tensor:
        filters: Tensor = self.conv.weight  # type: ignore[assignment]  # Parameters
        weight: Tensor = self.norm.weight  # type: ignore[assignment]
        x_1CPW = F.conv2d(x_1CPW.to(filters.dtype), filters, stride=2, padding=1)
        x_1PWC = F.layer_norm(x_1CPW.permute(0, 2, 3, 1), weight.shape, weight, eps=self.eps)
        return F.relu(x_1PWC).permute(0, 3, 1, 2)


def limited(x: Tensor, config: AudioConfig) -> Tensor:
    """Clamp to what training clipped to, or the type's largest number."""
    most = min(config.gradient_clipping, torch.finfo(x.dtype).max)
    return x.clamp(-most, most)


class AudioLayer(nn.Module):
    """Half an MLP, attention, a convolution, and half an MLP again."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.feed_forward1, self.feed_forward2 = FeedForward(config), FeedForward(config)
        self.self_attn, self.lconv1d = AudioAttention(config), LightConvolution(config)
        self.norm_pre_attn = RMSNorm(config.hidden_size, EPS)
        self.norm_post_attn = RMSNorm(config.hidden_size, EPS)
        self.norm_out = RMSNorm(config.hidden_size, EPS)

    def forward(self, x_LD: Tensor, places_RD: Tensor) -> Tensor:
        x_LD = self.feed_forward1(x_LD)
        h_LD = self.self_attn(self.norm_pre_attn(limited(x_LD, self.config)), places_RD)
        x_LD = x_LD + self.norm_post_attn(limited(h_LD, self.config))
        x_LD = self.feed_forward2(self.lconv1d(x_LD))
        y_LD: Tensor = self.norm_out(limited(x_LD, self.config))
        return y_LD


class FeedForward(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.ffw_layer_1 = Clipped(config, size, 4 * size)
        self.ffw_layer_2 = Clipped(config, 4 * size, size)
        self.pre_layer_norm, self.post_layer_norm = RMSNorm(size, EPS), RMSNorm(size, EPS)

    def forward(self, x_LD: Tensor) -> Tensor:
        h_LD = self.ffw_layer_1(self.pre_layer_norm(limited(x_LD, self.config)))
        h_LD = limited(self.ffw_layer_2(F.silu(h_LD)), self.config)
        y_LD: Tensor = self.post_layer_norm(h_LD) * self.config.residual_weight + x_LD
        return y_LD


class LightConvolution(nn.Module):
    """A gate, and a convolution over the positions before, channel by channel."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config, size, eps = config, config.hidden_size, config.rms_norm_eps
        self.linear_start = Clipped(config, size, 2 * size)
        self.linear_end = Clipped(config, size, size)
        self.depthwise_conv1d = nn.Module()
        shape = size, 1, config.conv_kernel_size
        self.depthwise_conv1d.weight = nn.Parameter(torch.empty(shape))
        self.pre_layer_norm, self.conv_norm = RMSNorm(size, eps), RMSNorm(size, eps)

    def forward(self, x_LD: Tensor) -> Tensor:
        weight: Tensor = self.depthwise_conv1d.weight  # type: ignore[assignment]  # a Parameter
        h_LD = F.glu(self.linear_start(self.pre_layer_norm(x_LD)), dim=-1)
        h_1DL = F.pad(h_LD.t()[None], (weight.shape[-1] - 1, 0))
        h_LD = F.conv1d(h_1DL, weight, groups=len(weight))[0].t()
        h_LD = self.conv_norm(limited(h_LD, self.config).contiguous())
        y_LD: Tensor = self.linear_end(F.silu(h_LD)) + x_LD
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
        past, cap = self.config.past, self.config.attention_logit_cap
        q_LHC, k_LHC, v_LHC = (
            product(x_LD).float().unflatten(1, (self.heads, self.dim))
            for product in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_LHC = q_LHC * (self.dim**-0.5 / math.log(2)) * F.softplus(self.per_dim_scale)
        k_LHC = k_LHC * (math.log(1 + math.e) / math.log(2))
        k_LHCR, v_LHCR = windows(k_LHC, past), windows(v_LHC, past)
        places_RHC = self.relative_k_proj(places_RD).float().unflatten(1, (self.heads, self.dim))
        scores_LHR = torch.einsum("lhc,lhcr->lhr", q_LHC, k_LHCR)
        scores_LHR = scores_LHR + torch.einsum("lhc,rhc->lhr", q_LHC, places_RHC)
        scores_LHR = torch.tanh(scores_LHR / cap) * cap
        seen_LR = seen(len(x_LD), past).to(x_LD.device)
        scores_LHR = scores_LHR.masked_fill(~seen_LR[:, None], EXCLUDED)
        y_LHC = torch.einsum("lhr,lhcr->lhc", scores_LHR.softmax(-1), v_LHCR)
        y_LD: Tensor = self.post(y_LHC.flatten(1).to(x_LD.dtype))
        return y_LD


def windows(x_LHC: Tensor, past: int) -> Tensor:
    """Return each position and those before it, zeros before the first, (L, H, C, R)."""
    return F.pad(x_LHC, (0, 0, 0, 0, past, 0)).unfold(0, past + 1, 1)


def seen(count: int, past: int) -> Tensor:
    """Return whether a position attends to that of each distance, (L, R): not to the farthest."""
    place_L, back_R = torch.arange(count), torch.arange(past, -1, -1)
    return (back_R < past) & (back_R <= place_L[:, None])
