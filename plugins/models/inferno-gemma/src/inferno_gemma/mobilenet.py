"""MobileNet-V5, which encodes the images of Gemma 3n: convolutions, and attention with one key and
one value for all heads.

https://arxiv.org/abs/2404.10518 (V4, of whose blocks it is made); reference: timm/models/
mobilenetv5.

Suffixes: N images (one), C channels, R rows and columns, S positions, K of keys, H heads, D head
dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno_gemma.mobilenet_config import Attends, Block, Expands, Inverts, MobileNetConfig

EPS = 1e-6


class Convolution(nn.Module):
    """A convolution over the image with zeros around it: as many as the result needs for each place
    of a step, the odd one behind."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = False
    ) -> None:
        """With 0 inputs, each channel is computed by itself."""
        super().__init__()
        self.stride, self.groups = stride, 1 if inputs else outputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs or 1, size, size))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x_NCRR: Tensor) -> Tensor:
        size, padding = self.weight.shape[-1], 0
        if self.stride == 1:
            padding = size // 2
        else:
            columns, rows = (self._missing(side) for side in x_NCRR.shape[:1:-1])
            x_NCRR = F.pad(x_NCRR, (*columns, *rows))
        weight = self.weight.to(x_NCRR.dtype)
        bias = self.bias.to(x_NCRR.dtype) if self.bias is not None else None
        y_NCRR: Tensor = F.conv2d(x_NCRR, weight, bias, self.stride, padding, groups=self.groups)
        return y_NCRR

    def _missing(self, side: int) -> tuple[int, int]:
        count = -(-side // self.stride)
        missing = max((count - 1) * self.stride + self.weight.shape[-1] - side, 0)
        return missing // 2, missing - missing // 2


class Norm(nn.Module):
    """Divides channels by the root of their mean square, and may apply GELU."""

    def __init__(self, channels: int, *, activates: bool = False) -> None:
        super().__init__()
        self.weight, self.activates = nn.Parameter(torch.empty(channels)), activates

    def forward(self, x_NCRR: Tensor) -> Tensor:
        h_NCRR = x_NCRR.float()
        h_NCRR = h_NCRR * torch.rsqrt(h_NCRR.square().mean(1, keepdim=True) + EPS)
        h_NCRR = h_NCRR * self.weight[:, None, None]
        h_NCRR = F.gelu(h_NCRR, approximate="tanh") if self.activates else h_NCRR
        return h_NCRR.to(x_NCRR.dtype)


class Normed(nn.Module):
    """A convolution and what normalizes it."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        *,
        activates: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv = Convolution(inputs, outputs, size, stride, bias=bias)
        self.bn = Norm(outputs, activates=activates)

    def forward(self, x_NCRR: Tensor) -> Tensor:
        y_NCRR: Tensor = self.bn(self.conv(x_NCRR))
        return y_NCRR


class Scale(nn.Module):
    """A factor for each channel of what a block adds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x_NCRR: Tensor) -> Tensor:
        return x_NCRR * self.gamma.to(x_NCRR.dtype)[:, None, None]


class Expanding(nn.Module):
    """A convolution to more channels, and a product back."""

    def __init__(self, inputs: int, block: Expands) -> None:
        super().__init__()
        inner = block.inner(inputs)
        self.conv_exp = Convolution(inputs, inner, block.size, block.stride)
        self.bn1 = Norm(inner, activates=True)
        self.conv_pwl = Convolution(inner, block.channels, 1)
        self.bn2 = Norm(block.channels)
        self.adds = block.stride == 1 and inputs == block.channels

    def forward(self, x_NCRR: Tensor) -> Tensor:
        h_NCRR = self.bn1(self.conv_exp(x_NCRR))
        h_NCRR = self.bn2(self.conv_pwl(h_NCRR))
        y_NCRR: Tensor = h_NCRR + x_NCRR if self.adds else h_NCRR
        return y_NCRR


class Inverted(nn.Module):
    """Products to more channels and back, with convolutions channel by channel before and between
    them, if the block has these."""

    def __init__(self, inputs: int, block: Inverts, *, adds: bool = True) -> None:
        """Without `adds`, it returns what it computes, not scaled."""
        super().__init__()
        inner = block.inner(inputs)
        # What the block has of both is strided once: by the second if there is one.
        first = block.stride if not block.middle else 1
        self.dw_start = Normed(0, inputs, block.first, first) if block.first else nn.Identity()
        self.pw_exp = Normed(inputs, inner, 1, activates=True)
        self.dw_mid = (
            Normed(0, inner, block.middle, block.stride, activates=True)
            if block.middle
            else nn.Identity()
        )
        self.pw_proj = Normed(inner, block.channels, 1)
        self.layer_scale = Scale(block.channels) if adds else nn.Identity()
        self.adds = adds and block.stride == 1 and inputs == block.channels

    def forward(self, x_NCRR: Tensor) -> Tensor:
        h_NCRR = self.dw_mid(self.pw_exp(self.dw_start(x_NCRR)))
        h_NCRR = self.layer_scale(self.pw_proj(h_NCRR))
        y_NCRR: Tensor = h_NCRR + x_NCRR if self.adds else h_NCRR
        return y_NCRR


class MultiQuery(nn.Module):
    """Attention of all positions to all, or to a part of them that a convolution makes."""

    def __init__(self, channels: int, block: Attends) -> None:
        super().__init__()
        self.heads, self.dim = block.heads, block.dim
        self.query, self.output = nn.Module(), nn.Module()
        self.query.proj = Convolution(channels, block.heads * block.dim, 1)
        self.key, self.value = (_Reduced(channels, block) for _ in range(2))
        self.output.proj = Convolution(block.heads * block.dim, channels, 1)

    def forward(self, x_NCRR: Tensor) -> Tensor:
        sides = x_NCRR.shape[2:]
        q_NXRR = self.query.get_submodule("proj")(x_NCRR)
        q_NHSD = q_NXRR.reshape(1, self.heads, self.dim, -1).transpose(2, 3)
        k_NHKD, v_NHKD = (
            made(x_NCRR).flatten(2).transpose(1, 2)[:, None].expand(-1, self.heads, -1, -1)
            for made in (self.key, self.value)
        )
        y_NHSD = F.scaled_dot_product_attention(q_NHSD, k_NHKD, v_NHKD)
        y_NXRR = y_NHSD.transpose(2, 3).reshape(1, self.heads * self.dim, *sides)
        y_NCRR: Tensor = self.output.get_submodule("proj")(y_NXRR)
        return y_NCRR


class _Reduced(nn.Module):
    def __init__(self, channels: int, block: Attends) -> None:
        super().__init__()
        self.strided = block.stride > 1
        if self.strided:
            self.down_conv = Convolution(0, channels, block.size, block.stride)
            self.norm = Norm(channels)
        self.proj = Convolution(channels, block.dim, 1)

    def forward(self, x_NCRR: Tensor) -> Tensor:
        h_NCRR = self.norm(self.down_conv(x_NCRR)) if self.strided else x_NCRR
        y_NDRR: Tensor = self.proj(h_NCRR)
        return y_NDRR


class Attending(nn.Module):
    def __init__(self, inputs: int, block: Attends) -> None:
        super().__init__()
        self.norm, self.attn = Norm(inputs), MultiQuery(inputs, block)
        self.layer_scale = Scale(inputs)

    def forward(self, x_NCRR: Tensor) -> Tensor:
        y_NCRR: Tensor = x_NCRR + self.layer_scale(self.attn(self.norm(x_NCRR)))
        return y_NCRR


_MADE: Mapping[type[Block], type[nn.Module]] = {
    Expands: Expanding,
    Inverts: Inverted,
    Attends: Attending,
}


class Fusion(nn.Module):
    """What makes the image's tokens of the results of two stages."""

    def __init__(self, config: MobileNetConfig) -> None:
        super().__init__()
        self.side = config.side
        channels = sum(config.fused_channels)
        block = Inverts(channels=config.hidden_size, expansion=2)
        self.ffn = Inverted(channels, block, adds=False)
        self.norm = Norm(config.hidden_size)

    def forward(self, fine_NCRR: Tensor, coarse_NCRR: Tensor) -> Tensor:
        coarse_NCRR = F.interpolate(coarse_NCRR, size=fine_NCRR.shape[2:], mode="nearest")
        h_NCRR = self.ffn(torch.cat([fine_NCRR, coarse_NCRR], 1))
        y_NCRR: Tensor = self.norm(F.avg_pool2d(h_NCRR, h_NCRR.shape[-1] // self.side))
        return y_NCRR


class MobileNet(nn.Module):
    def __init__(self, config: MobileNetConfig) -> None:
        super().__init__()
        channels = config.stem
        self.conv_stem = Normed(3, channels, 3, 2, activates=True, bias=True)
        self.blocks = nn.ModuleList()
        for stage in config.stages:
            made = nn.ModuleList()
            for block in stage:
                made.append(_MADE[type(block)](channels, block))
                channels = block.channels
            self.blocks.append(made)
        self.msfa = Fusion(config)

    def forward(self, pixels_NCRR: Tensor) -> Tensor:
        """Return the features of the image's tokens, (N, C, R, R)."""
        dtype = self.msfa.norm.weight.dtype
        # Convolutions in bfloat16 take three times as long on CPUs without products of it.
        inner = torch.float32 if pixels_NCRR.device.type == "cpu" else dtype
        x_NCRR: Tensor = self.conv_stem(pixels_NCRR.to(inner))
        results = []
        for stage in self.blocks:
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                x_NCRR = block(x_NCRR)
            results.append(x_NCRR)
        y_NCRR: Tensor = self.msfa(*results[-2:]).to(dtype)
        return y_NCRR
