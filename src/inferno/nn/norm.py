from __future__ import annotations

import torch
from torch import Tensor, nn

from inferno.nn import ops


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32 (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))
        self.ops = ops.TORCH

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def after(self, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """x + delta, and its norm. Without a delta x itself, and its norm."""
        if delta_TD is None:
            return x_TD, self.ops.rms_norm(x_TD, self.weight, self.eps)
        return self.ops.add_rms_norm(x_TD, delta_TD, self.weight, self.eps)
