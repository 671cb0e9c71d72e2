"""The operators of `inferno.ops.reference`, one native call each.

Inputs may be views: slices of a fused qkv or gate_up matrix are not copied. Results are new,
contiguous tensors. Elements are float32, bfloat16 or float16; the computation is in float32, and
rounds where torch's operators do.

Suffixes: T tokens, H heads, C head dim, D hidden, E rotated pairs, I intermediate, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.dtypes import DTYPES

_MAX_HEAD_DIM = 512


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) · weight over the last dimension of (T, D) or (T, H, C). Here and below the
    weight has x's type or is float32."""
    x = _dense_rows(x)
    y = torch.empty(x.shape, dtype=x.dtype)
    _native.rms_norm(DTYPES[x.dtype], *_heads(x), *_norm(weight, eps), y.data_ptr())
    return y


def add_rms_norm(
    x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + delta and its norm: the residual step between two sublayers."""
    x_TD, delta_TD = _dense_rows(x_TD), _dense_rows(delta_TD)
    sum_TD, y_TD = (
        torch.empty(x_TD.shape, dtype=x_TD.dtype),
        torch.empty(x_TD.shape, dtype=x_TD.dtype),
    )
    _native.add_rms_norm(
        DTYPES[x_TD.dtype],
        x_TD.data_ptr(),
        x_TD.stride(0),
        delta_TD.data_ptr(),
        delta_TD.stride(0),
        *_norm(weight_D, eps),
        sum_TD.data_ptr(),
        y_TD.data_ptr(),
        x_TD.shape[0],
        x_TD.shape[1],
    )
    return sum_TD, y_TD


def add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor | None,
    eps: float,
) -> Tensor:
    """Return (s - mean(s)) / std(s) · weight + bias over the last dimension of s = x + residual,
    which is not rounded. Bias and weight are of one type."""
    y_TD = torch.empty(x_TD.shape, dtype=x_TD.dtype)
    x_TD = _dense_rows(x_TD.reshape(-1, len(weight_D)))
    if residual_TD is not None:
        residual_TD = _dense_rows(residual_TD.reshape(x_TD.shape))
    _native.add_layer_norm(
        DTYPES[x_TD.dtype],
        x_TD.data_ptr(),
        x_TD.stride(0),
        0 if residual_TD is None else residual_TD.data_ptr(),
        0 if residual_TD is None else residual_TD.stride(0),
        *_norm(weight_D, eps),
        0 if bias_D is None else bias_D.data_ptr(),
        y_TD.data_ptr(),
        *x_TD.shape,
    )
    return y_TD


def rope(x_THC: Tensor, cos_TE: Tensor, sin_TE: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first 2 E channels of each head by the token's angles, in pairs (i, i + E) or, if
    interleaved, (2 i, 2 i + 1). `cos_TE` and `sin_TE` are contiguous float32."""
    x_THC = _dense_rows(x_THC)
    y_THC = torch.empty(x_THC.shape, dtype=x_THC.dtype)
    _native.rope(
        DTYPES[x_THC.dtype],
        *_heads(x_THC),
        cos_TE.data_ptr(),
        sin_TE.data_ptr(),
        cos_TE.shape[-1],
        interleaved,
        y_THC.data_ptr(),
    )
    return y_THC


def norm_rope(
    x_THC: Tensor,
    weight_C: Tensor | None,
    eps: float,
    cos_TE: Tensor,
    sin_TE: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """Return `rope(rms_norm(x, weight, eps), cos, sin)`; `rope(x, cos, sin)` without a weight."""
    if weight_C is None:
        return rope(x_THC, cos_TE, sin_TE, interleaved)
    if x_THC.shape[-1] > _MAX_HEAD_DIM:
        return rope(rms_norm(x_THC, weight_C, eps), cos_TE, sin_TE, interleaved)
    x_THC = _dense_rows(x_THC)
    y_THC = torch.empty(x_THC.shape, dtype=x_THC.dtype)
    _native.norm_rope(
        DTYPES[x_THC.dtype],
        *_heads(x_THC),
        *_norm(weight_C, eps),
        cos_TE.data_ptr(),
        sin_TE.data_ptr(),
        cos_TE.shape[-1],
        interleaved,
        y_THC.data_ptr(),
    )
    return y_THC


def silu_mul(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    """Return silu(gate) · up."""
    gate_TI, up_TI = _dense_rows(gate_TI), _dense_rows(up_TI)
    y_TI = torch.empty(gate_TI.shape, dtype=gate_TI.dtype)
    _native.silu_mul(
        DTYPES[gate_TI.dtype],
        gate_TI.data_ptr(),
        gate_TI.stride(0),
        up_TI.data_ptr(),
        up_TI.stride(0),
        y_TI.data_ptr(),
        *gate_TI.shape,
    )
    return y_TI


def gelu(x_TI: Tensor) -> Tensor:
    """Return x · (1 + erf(x / √2)) / 2. x is overwritten."""
    x_TI = _dense_rows(x_TI)
    _native.gelu(DTYPES[x_TI.dtype], x_TI.data_ptr(), x_TI.stride(0), *x_TI.shape)
    return x_TI


def argmax(logits_TV: Tensor) -> Tensor:
    """Return ids_T (int64) of the largest logit of each row: the lowest id among equals, and -1 if
    the maximum is not finite or any logit is NaN."""
    logits_TV = _dense_rows(logits_TV)
    T, V = logits_TV.shape
    ids_T = torch.empty(T, dtype=torch.int64)
    _native.argmax(
        DTYPES[logits_TV.dtype],
        logits_TV.data_ptr(),
        logits_TV.stride(0),
        ids_T.data_ptr(),
        T,
        V,
    )
    return ids_T


def gather(table_VD: Tensor, ids_T: Tensor) -> Tensor:
    """Return rows of the table by int64 ids, (T, D), with zeros for an id out of range."""
    table_VD, ids_T = table_VD.contiguous(), ids_T.contiguous()
    y_TD = torch.empty(len(ids_T), table_VD.shape[1], dtype=table_VD.dtype)
    _native.gather(
        DTYPES[table_VD.dtype],
        ids_T.data_ptr(),
        table_VD.data_ptr(),
        y_TD.data_ptr(),
        len(ids_T),
        *table_VD.shape,
    )
    return y_TD


def _dense_rows(x: Tensor) -> Tensor:
    """Return x with contiguous rows, copied only if they are not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _norm(weight: Tensor, eps: float) -> tuple[int, bool, float]:
    """Return the address of a weight, whether it is float32, and eps."""
    return weight.data_ptr(), weight.dtype == torch.float32, eps


def _heads(x: Tensor) -> tuple[int, int, int, int, int, int]:
    """Return address, strides and sizes of (T, H, C); a matrix has one head."""
    if x.dim() == 2:
        return x.data_ptr(), x.stride(0), 0, x.shape[0], 1, x.shape[1]
    return x.data_ptr(), x.stride(0), x.stride(1), *x.shape
