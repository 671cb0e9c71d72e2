"""The operators of `inferno.ops` that have kernels, one launch each. Inputs may be views with
contiguous rows: slices of a fused matrix are not copied.

Suffixes: T tokens, D hidden, H heads, C head dim, E rotated pairs, I intermediate.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from inferno_triton import rows

_WIDTH = 1024
"""Elements of a program that computes element by element."""

_LOGITS = 4096
"""Logits that a program compares at once."""

_HEADS = 16
"""Heads of a program, at most."""


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) · weight over the last dimension."""
    x_TD, out = as_rows(x), x.new_empty(x.shape)
    _norm(x_TD, x_TD, weight_D, out, out, eps, add=False)
    return out


def add_rms_norm(
    x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + delta and its norm."""
    sum_TD, out_TD = x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)
    _norm(as_rows(x_TD), as_rows(delta_TD), weight_D, sum_TD, out_TD, eps, add=True)
    return sum_TD, out_TD


def _norm(
    x_TD: Tensor,
    delta_TD: Tensor,
    weight_D: Tensor,
    total: Tensor,
    out: Tensor,
    eps: float,
    *,
    add: bool,
) -> None:
    T, D = x_TD.shape
    if T == 0:
        return
    wide = triton.next_power_of_2(D)
    rows.rms_norm[(T,)](
        x_TD,
        delta_TD,
        weight_D,
        total,
        out,
        eps,
        x_TD.stride(0),
        delta_TD.stride(0),
        D,
        DP=wide,
        ADD=add,
        num_warps=min(16, max(1, wide // 512)),
    )


def norm_rope(
    x_THC: Tensor,
    weight_C: Tensor | None,
    eps: float,
    cos_TE: Tensor,
    sin_TE: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """Normalize heads, if there is a weight, and rotate the first 2 E elements of each."""
    x_THC = x_THC if x_THC.stride(2) == 1 else x_THC.contiguous()
    (T, H, C), E = x_THC.shape, cos_TE.shape[-1]
    out_THC = x_THC.new_empty(x_THC.shape)
    if T == 0:
        return out_THC
    heads = min(_HEADS, triton.next_power_of_2(H))
    rows.norm_rope[(T, triton.cdiv(H, heads))](
        x_THC,
        x_THC if weight_C is None else weight_C,
        cos_TE.contiguous(),
        sin_TE.contiguous(),
        out_THC,
        eps,
        *x_THC.stride()[:2],
        H,
        C=C,
        E=E,
        EP=triton.next_power_of_2(E),
        RP=triton.next_power_of_2(C - 2 * E) if C > 2 * E else 0,
        BH=heads,
        NORM=weight_C is not None,
        INTERLEAVED=interleaved,
    )
    return out_THC


def silu_mul(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    """Return silu(gate) · up."""
    gate_TI, up_TI = as_rows(gate_TI), as_rows(up_TI)
    T, width = gate_TI.shape
    out_TI = gate_TI.new_empty(gate_TI.shape)
    if T:
        block = min(_WIDTH, triton.next_power_of_2(width))
        rows.silu_mul[(T, triton.cdiv(width, block))](
            gate_TI, up_TI, out_TI, gate_TI.stride(0), up_TI.stride(0), width, DB=block
        )
    return out_TI


def argmax(logits_TV: Tensor) -> Tensor:
    """Return each row's best token, the lowest id among equals; -1 if that is not finite, or a
    logit is NaN."""
    logits_TV = as_rows(logits_TV)
    T, width = logits_TV.shape
    ids_T = logits_TV.new_empty(T, dtype=torch.int64)
    if T:
        block = min(_LOGITS, triton.next_power_of_2(width))
        rows.argmax[(T,)](
            logits_TV, ids_T, logits_TV.stride(0), width, DB=block, num_warps=max(1, block // 512)
        )
    return ids_T


def as_rows(x: Tensor) -> Tensor:
    """Return x as rows, copied only if they are not contiguous."""
    if x.ndim == 2 and x.stride(1) == 1:
        return x
    return x.reshape(-1, x.shape[-1])
