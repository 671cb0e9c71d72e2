"""Inputs with the statistics of trained models, which random ones of one size do not have: a few
massive channels beside ordinary ones, products with heavy tails, logits with close candidates far
above the rest.

Suffixes: T tokens, D channels, I inner width, V vocabulary, H query heads, K key/value heads, C
head dim.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import AttentionNeed

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


def trained_heads(
    need: AttentionNeed, num_sequences: int, longest: int, device: str
) -> tuple[list[list[Tensor]], Tensor | None]:
    """Return queries, keys and values of each sequence, and the sinks. Attention is sharp, of about
    one bit: scores differ by 5, root mean square. The first token draws the queries and has small
    values; of four runs of 64 keys, one is 40 below the others. A channel of the keys is constant:
    300, or 4 times the others in an int8 cache, which is given no larger ones (decision 0057)."""
    generator = torch.Generator().manual_seed(0)
    kv_heads, dim, scale = need.num_kv_heads, need.head_dim, need.scale
    size = math.sqrt(5 / (scale * math.sqrt(dim)))
    drawing = 16.0  # what queries have in the channel that tells the first token and cold runs
    at_T = torch.arange(longest)
    qkv = []
    for _ in range(num_sequences):
        q_THC = torch.randn(longest, need.num_heads, dim, generator=generator) * size
        k_TKC = torch.randn(longest, kv_heads, dim, generator=generator) * size
        v_TKC = torch.randn(longest, kv_heads, need.output_dim, generator=generator) + 0.5
        q_THC[..., 0], q_THC[..., 1] = q_THC[..., 0] * 0.01, drawing
        k_TKC[..., 1] = torch.where(at_T // 64 % 4 == 2, -40 / (drawing * scale), 0.0)[:, None]
        k_TKC[0, :, 1] = 16 / (drawing * scale)
        v_TKC[0] *= 0.01
        if need.latent_dim is None:
            k_TKC[..., 0] = 4 * size if need.cache_dtype == "int8" else 300
        else:
            v_TKC = k_TKC[..., : need.latent_dim]
        dtype = getattr(torch, need.dtype)
        qkv.append([x.to(device, dtype) for x in (q_THC, k_TKC, v_TKC)])
    if not need.sinks:
        return qkv, None
    sinks_H = 12 + 4 * torch.randn(need.num_heads, generator=generator)
    return qkv, sinks_H.to(device, getattr(torch, need.dtype))
