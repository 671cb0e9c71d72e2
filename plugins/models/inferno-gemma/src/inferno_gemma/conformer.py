"""What the encoders of audio of Gemma 3n and 4 share: parts of a Conformer.

https://arxiv.org/abs/2303.01037.

Suffixes: P frames of a spectrogram, W mel bins, L positions of the encoder, D its hidden size,
H heads, C channels or head dim, R distances of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn import Linear, RMSNorm

EPS = 1e-6
"""Of the norms that do not read the config's."""
EXCLUDED = -1e9
"""The score of what is not attended to."""
Product = Callable[[int, int], nn.Module]
"""(inputs, outputs) -> what computes a product."""


def distances(past: int, size: int) -> Tensor:
    """Return embeddings of the distances of a window, sines, then cosines, (R, D): the farthest
    first, none last."""
    half = size // 2
    rate = math.log(10_000) / max(half - 1, 1)
    waves = torch.exp(torch.arange(half) * -rate)
    angles = torch.arange(past, -1, -1)[:, None] * waves
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def limited(x: Tensor, most: float) -> Tensor:
    """Clamp to what training clipped to, or the type's largest number."""
    most = min(most, torch.finfo(x.dtype).max)
    return x.clamp(-most, most)


class FeedForward(nn.Module):
    def __init__(self, size: int, *, weight: float, most: float, product: Product) -> None:
        """`weight` is that of what it adds, `most` the largest number."""
        super().__init__()
        self.weight, self.most = weight, most
        self.ffw_layer_1 = product(size, 4 * size)
        self.ffw_layer_2 = product(4 * size, size)
        self.pre_layer_norm, self.post_layer_norm = RMSNorm(size, EPS), RMSNorm(size, EPS)

    def forward(self, x_LD: Tensor) -> Tensor:
        h_LD = self.ffw_layer_1(self.pre_layer_norm(limited(x_LD, self.most)))
        h_LD = limited(self.ffw_layer_2(F.silu(h_LD)), self.most)
        y_LD: Tensor = self.post_layer_norm(h_LD) * self.weight + x_LD
        return y_LD


class LightConvolution(nn.Module):
    """A gate, and a convolution over the positions before, channel by channel."""

    def __init__(self, size: int, width: int, *, eps: float, most: float, product: Product) -> None:
        super().__init__()
        self.most = most
        self.linear_start = product(size, 2 * size)
        self.linear_end = product(size, size)
        self.depthwise_conv1d = nn.Module()
        self.depthwise_conv1d.weight = nn.Parameter(torch.empty(size, 1, width))
        self.pre_layer_norm, self.conv_norm = RMSNorm(size, eps), RMSNorm(size, eps)

    def forward(self, x_LD: Tensor) -> Tensor:
        weight: Tensor = self.depthwise_conv1d.weight  # type: ignore[assignment]  # a Parameter
        h_LD = F.glu(self.linear_start(self.pre_layer_norm(x_LD)), dim=-1)
        h_1DL = F.pad(h_LD.t()[None], (weight.shape[-1] - 1, 0))
        h_LD = F.conv1d(h_1DL, weight, groups=len(weight))[0].t()
        h_LD = self.conv_norm(limited(h_LD, self.most).contiguous())
        y_LD: Tensor = self.linear_end(F.silu(h_LD)) + x_LD
        return y_LD


def scaled(q_LHC: Tensor, per_dim_scale_C: Tensor) -> Tensor:
    """Return queries times what was trained for each dimension, 1 where that is 0."""
    factor = q_LHC.shape[-1] ** -0.5 / math.log(2)
    y_LHC: Tensor = q_LHC * factor * F.softplus(per_dim_scale_C.float())
    return y_LHC


def attended(
    q_LHC: Tensor, k_LHC: Tensor, v_LHC: Tensor, places_RHC: Tensor, *, cap: float, farthest: bool
) -> Tensor:
    """Return what each position reads of a window that it ends, (L, H, C), in float32: scores have
    a part for each distance. Without `farthest`, the first of the window is not read."""
    past = len(places_RHC) - 1
    k_LHCR, v_LHCR = windows(k_LHC, past), windows(v_LHC, past)
    scores_LHR = torch.einsum("lhc,lhcr->lhr", q_LHC, k_LHCR)
    scores_LHR = scores_LHR + torch.einsum("lhc,rhc->lhr", q_LHC, places_RHC)
    scores_LHR = torch.tanh(scores_LHR / cap) * cap
    seen_LR = seen(len(q_LHC), past, farthest=farthest).to(q_LHC.device)
    scores_LHR = scores_LHR.masked_fill(~seen_LR[:, None], EXCLUDED)
    return torch.einsum("lhr,lhcr->lhc", scores_LHR.softmax(-1), v_LHCR)


def windows(x_LHC: Tensor, past: int) -> Tensor:
    """Return each position and those before it, zeros before the first, (L, H, C, R)."""
    return F.pad(x_LHC, (0, 0, 0, 0, past, 0)).unfold(0, past + 1, 1)


def seen(count: int, past: int, *, farthest: bool) -> Tensor:
    """Return whether a position attends to that of each distance, (L, R)."""
    place_L, back_R = torch.arange(count), torch.arange(past, -1, -1)
    return (back_R < past + farthest) & (back_R <= place_L[:, None])


class Strided(nn.Module):
    """A 3 x 3 convolution with stride 2 in time and in frequency, and a norm without a bias.
    Subclasses say how it pads and normalizes."""

    def __init__(self, inputs: int, outputs: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.conv, self.norm = nn.Module(), nn.Module()
        self.conv.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.norm.weight = nn.Parameter(torch.empty(outputs))

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Those of the convolution and of the norm."""
        return self.get_parameter("conv.weight"), self.get_parameter("norm.weight")


class Subsample(nn.Module):
    """Two such convolutions, with these names, and a projection."""

    def __init__(
        self,
        names: tuple[str, str],
        kind: type[Strided],
        channels: Sequence[int],
        bins: int,
        size: int,
        eps: float,
    ) -> None:
        super().__init__()
        self.names = names
        for name, inputs, outputs in zip(names, (1, channels[0]), channels, strict=True):
            self.add_module(name, kind(inputs, outputs, eps))
        self.input_proj_linear = Linear(bins // 4 * channels[1], size)

    def forward(self, frames_PW: Tensor) -> Tensor:
        x_1CLW = frames_PW[None, None]
        for name in self.names:
            x_1CLW = self.get_submodule(name)(x_1CLW)
        x_LD: Tensor = self.input_proj_linear(x_1CLW[0].permute(1, 2, 0).flatten(1))
        return x_LD
