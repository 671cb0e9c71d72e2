"""Low-rank adapters in slots, as defined by `inferno.ops`: one native call for each matrix.

Suffixes: T tokens, I inputs, O outputs, S slots, N rank, R rows of a slot's first matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.dtypes import DTYPES


def shrink(x_TI: Tensor, down_SRI: Tensor, slots_T: Tensor) -> Tensor:
    """Return each token's product with the first matrices of its slot, (T, R) in float32; zeros for
    tokens of slot -1. `slots_T` is int64."""
    x_TI = x_TI if x_TI.stride(1) == 1 else x_TI.contiguous()
    (tokens, inputs), rows = x_TI.shape, down_SRI.shape[1]
    h_TR = torch.empty(tokens, rows, dtype=torch.float32)
    _native.shrink(
        DTYPES[x_TI.dtype],
        x_TI.data_ptr(),
        x_TI.stride(0),
        down_SRI.data_ptr(),
        slots_T.data_ptr(),
        h_TR.data_ptr(),
        tokens,
        inputs,
        rows,
    )
    return h_TR


def expand(y_TO: Tensor, h_TR: Tensor, ups: Sequence[Tensor], slots_T: Tensor) -> Tensor:
    """Return y plus the products of a `shrink` with the second matrices, (S, N, outputs), which
    stand side by side in y. y itself is changed if its rows are contiguous."""
    y_TO = y_TO if y_TO.stride(1) == 1 else y_TO.contiguous()
    y, h = y_TO.data_ptr(), h_TR.data_ptr()
    for up_SNO in ups:
        _, rank, outputs = up_SNO.shape
        _native.expand(
            DTYPES[y_TO.dtype],
            h,
            h_TR.stride(0),
            up_SNO.data_ptr(),
            slots_T.data_ptr(),
            y,
            y_TO.stride(0),
            len(y_TO),
            rank,
            outputs,
        )
        y += outputs * y_TO.element_size()
        h += rank * h_TR.element_size()
    return y_TO
