"""The small operators between matrix products and attention, as torch computes them: what a kernel provider must equal.

Suffixes: T tokens, D any width, H heads, C head dim, R rotated dims (<= C), E rotated pairs (R / 2), I inner width, N rows of a
table, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / rms(x) · weight over the last dimension, computed in float32 (arXiv:1910.07467). The weight is of x's type or
    float32; the result is of x's."""
    if weight_D.dtype == torch.float32:
        return F.rms_norm(x.float(), weight_D.shape, weight_D, eps).to(x.dtype)
    # Rounded to x's type before a weight of that type is applied, as the checkpoints were trained.
    return F.rms_norm(x.float(), weight_D.shape, None, eps).to(x.dtype) * weight_D


def add_rms_norm(x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta, and its norm."""
    sum_TD = x_TD + delta_TD
    return sum_TD, rms_norm(sum_TD, weight_D, eps)


def norm_rope(
    x_THC: Tensor, weight_C: Tensor | None, eps: float, cos_TE: Tensor, sin_TE: Tensor, interleaved: bool = False
) -> Tensor:
    """Heads normed, if there is a weight, and the first R dims of each turned: pairs are (i, i + R/2), or, interleaved,
    (2 i, 2 i + 1)."""
    if weight_C is not None:
        x_THC = rms_norm(x_THC, weight_C, eps)
    rotated = 2 * cos_TE.shape[-1]
    cos_T1E, sin_T1E = cos_TE[:, None], sin_TE[:, None]
    x_THR = x_THC[..., :rotated].float()
    a, b = x_THR.reshape(*x_THR.shape[:-1], -1, 2).unbind(-1) if interleaved else x_THR.chunk(2, dim=-1)
    turned = (a * cos_T1E - b * sin_T1E, b * cos_T1E + a * sin_T1E)
    out = (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(x_THC.dtype)
    return out if rotated == x_THC.shape[-1] else torch.cat([out, x_THC[..., rotated:]], -1)


def silu_mul(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    """silu(gate) · up"""
    return F.silu(gate_TI) * up_TI


def gather(table_ND: Tensor, ids_T: Tensor) -> Tensor:
    """Rows of a table, (T, D)."""
    return F.embedding(ids_T, table_ND)


def argmax(logits_TV: Tensor) -> Tensor:
    """Each row's best token, the lowest id among equals; NaN is never the best. -1 where that is not decided: only in rows
    that are not all finite."""
    if logits_TV.device.type == "cpu" and logits_TV.dtype != torch.float32:
        # A CPU takes the argmax of 16-bit numbers five times slower than that of float32 copies within its caches.
        rows = max(1, _ROWS_IN_CACHE // logits_TV.shape[1])
        return torch.cat([argmax(part_BV.float()) for part_BV in torch.split(logits_TV, rows)])
    ids_T = logits_TV.argmax(-1)
    best_T = logits_TV.gather(-1, ids_T[:, None])[:, 0]
    return torch.where(best_T.isfinite(), ids_T, -1)


_ROWS_IN_CACHE = 2**20
"""Numbers, not bytes."""


@frozen(eq=False)
class Ops:
    """One implementation of each op of `contracts.OPS`: torch's, until the loader binds a provider's."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = add_rms_norm
    norm_rope: Callable[..., Tensor] = norm_rope
    silu_mul: Callable[[Tensor, Tensor], Tensor] = silu_mul
    gather: Callable[[Tensor, Tensor], Tensor] = gather
    argmax: Callable[[Tensor], Tensor] = argmax


TORCH = Ops()
