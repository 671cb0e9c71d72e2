from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32 (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # Rounded to x's type before the weight is applied, as the checkpoints were trained.
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight
