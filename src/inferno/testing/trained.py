"""Inputs with the statistics of trained models, which random ones of one size do not have: a few
massive channels beside ordinary ones, products with heavy tails, logits with close candidates far
above the rest.

Suffixes: T tokens, D channels, I inner width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MASSIVE = (1e3, 3e4, 3e3, 1e4)
"""Sizes of the massive channels of a hidden state."""


def massive_channels(width: int) -> list[int]:
    """Return the massive channels of hidden states of this width: two in one group of 32, others
    alone in theirs."""
    return sorted({7 % width, 19 % width, width // 2, width - 2 if width > 1 else 0})


def trained_hidden(tokens: int, width: int, *, seed: int = 0) -> Tensor:
    """Return hidden states in float32, (T, D): about 1, but for the massive channels, whose sign
    and size are nearly the same for all tokens. The first token, as a sink of attention, has the
    largest ones; the last one has none."""
    generator = torch.Generator().manual_seed(seed)
    x_TD = torch.randn(tokens, width, generator=generator)
    size_T = torch.rand(tokens, generator=generator) * 0.2 + 0.8
    size_T[0] = 1
    size_T[1:][-1:] = 0
    for number, channel in enumerate(massive_channels(width)):
        sign = -1 if number % 2 else 1
        x_TD[:, channel] += size_T * MASSIVE[number % len(MASSIVE)] * sign
    return x_TD


def trained_products(tokens: int, width: int, *, seed: int = 0) -> Tensor:
    """Return what a down projection is given, silu(gate) · up in float32, (T, I): most values near
    0, a few of some hundreds."""
    generator = torch.Generator().manual_seed(seed)
    gate_TI, up_TI, spread_TI = torch.randn(3, tokens, width, generator=generator)
    y_TI: Tensor = F.silu(3 * gate_TI) * 3 * up_TI * torch.exp(1.5 * spread_TI)
    return y_TI


def trained_matrix(rows: int, width: int, *, seed: int = 0) -> Tensor:
    """Return a matrix in float32, (V, D), whose columns for the massive channels are as small as
    these are large, as training leaves them, and whose last row equals its first."""
    generator = torch.Generator().manual_seed(seed)
    w_VD = torch.randn(rows, width, generator=generator) / math.sqrt(width)
    for number, channel in enumerate(massive_channels(width)):
        w_VD[:, channel] /= MASSIVE[number % len(MASSIVE)]
    w_VD[-1] = w_VD[0]
    return w_VD


def trained_logits(rows: int, vocab_size: int, *, peak: float = 40.0, seed: int = 0) -> Tensor:
    """Return logits in float32, (T, V): at `peak` three candidates that bfloat16 cannot tell apart,
    of which the one in the middle is the best, by 2e-6 of the peak; the others lower by 5 and
    more. The best is the same token in every second row."""
    generator = torch.Generator().manual_seed(seed)
    x_TV = torch.randn(rows, vocab_size, generator=generator).clamp_(max=5) * 2 + peak - 20
    for row in range(rows):
        at = row % 2
        x_TV[row, at :: max(1, (vocab_size - 2) // 2)] = peak * (1 - 2e-6)
        x_TV[row, at + max(1, (vocab_size - 2) // 2)] = peak
    return x_TV
