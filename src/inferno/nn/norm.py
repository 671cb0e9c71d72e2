from __future__ import annotations

import torch
from torch import Tensor, nn

from inferno.contracts import Range, Shard
from inferno.nn.cut import Cut
from inferno.nn.layer import Finalize, Layer
from inferno.ops import reference as ops


class RMSNorm(Layer):
    """x / rms(x) · (offset + weight) over the last dimension, computed in float32
    (arXiv:1910.07467).

    With an offset (Gemma's is 1), weight and sum stay float32, and the result is rounded once.
    """

    def __init__(self, size: int, eps: float, *, offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.empty(size))
        self.keep_fp32 = ("weight",) if offset else ()
        self.ops = ops.TORCH

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops
        if self.offset:
            self.weight = nn.Parameter(self.weight + self.offset, requires_grad=False)

    def scale(self, factors: Tensor) -> None:
        """Multiply what the norm returns by powers of two. To be called before it is finalized."""
        weight = (self.weight.float() + self.offset) * factors - self.offset
        self.weight = nn.Parameter(weight.to(self.weight.dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def after(self, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm; without a delta, x and its norm."""
        if delta_TD is None:
            return x_TD, self.ops.rms_norm(x_TD, self.weight, self.eps)
        return self.ops.add_rms_norm(x_TD, delta_TD, self.weight, self.eps)


class ProjectionNorm(RMSNorm):
    """An `RMSNorm` over a whole projection, all heads together. Ranks that share the heads sum the
    squares of theirs."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        self.size, self.cuts = size, dict[str, Cut]()
        self.copies = 1.0
        """How many ranks have each element."""

    def keep(self, part: Range, shard: Shard) -> None:
        """Normalize these elements of the projection."""
        self.cuts = {"weight": Cut(0, (part,))}
        self.copies = shard.ranks * (part[1] - part[0]) / self.size

    def forward(self, x: Tensor) -> Tensor:
        if not self.cuts:
            return super().forward(x)
        squares = x.float().square().sum(-1, keepdim=True) / (self.copies * self.size)
        scaled = x.float() * torch.rsqrt(self.ops.all_reduce(squares) + self.eps)
        return scaled.to(x.dtype) * self.weight


class LayerNorm(Layer):
    """(x - mean(x)) / std(x) · weight + bias over the last dimension (arXiv:1607.06450)."""

    offset = 0.0
    """Added to the weight, as `RMSNorm` has it."""

    def __init__(self, size: int, eps: float, *, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size)) if bias else None
        self.ops = ops.TORCH

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_TD: Tensor, residual_TD: Tensor | None = None) -> Tensor:
        """Return the norm of x or, with a residual, of their sum."""
        return self.ops.add_layer_norm(x_TD, residual_TD, self.weight, self.bias, self.eps)

    def after(self, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm; without a delta, x and its norm."""
        sum_TD = x_TD if delta_TD is None else x_TD + delta_TD
        return sum_TD, self.forward(sum_TD)
