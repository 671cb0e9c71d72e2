"""Matrices of bfloat16, float16 and float32, in panels of sixteen rows that are read in order.

Suffixes: O rows (output features), I columns (input features), T tokens; E matrices of R rows each,
stacked, and N rows of x among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno.nn.weight import Dense, Weight
from inferno_cpu import _native
from inferno_cpu.memory import pages

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""As native/dtype.hpp numbers them."""

_NAMES = ("float32", "bfloat16", "float16")
_PANEL_ROWS = 16


def refuses(layout: str, dtype: str, shape: tuple[int, int]) -> str | None:
    """A sentence when a matrix stored as `layout` is not for `Panels`, or not for activations of
    `dtype`."""
    if layout not in _NAMES:
        return f"a matrix of {layout} is not one of {', '.join(_NAMES)}"
    if dtype not in _NAMES:
        return f"it computes in {', '.join(_NAMES)}, not in {dtype}"
    if min(shape) < 1:
        return "a matrix without rows or columns has nothing to repack"
    return None


class Panels(Weight):
    """A plain matrix, its rows laid side by side in sixteens, the last of them filled up with
    zeros."""

    panels: Tensor

    def __init__(self, panels: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """`panels` as `native/dense.hpp` has them, in bytes, at a multiple of 64. Rows come in
        `dtype`."""
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        self.register_buffer("panels", panels, persistent=False)
        self._given: Tensor | None = None
        self._bias: Tensor | None = None
        self._kind = DTYPES[dtype]
        self._address = panels.data_ptr()

    @classmethod
    def of(cls, *parts: Dense) -> Panels:
        """A copy of these, stacked along the rows; they may be dropped then. All but the last have
        whole panels."""
        kind, in_features = parts[0].data.dtype, parts[0].shape[1]
        steps = in_features + in_features % 2 if kind == torch.bfloat16 else in_features
        panel_bytes = _PANEL_ROWS * steps * kind.itemsize
        out_features = sum(part.shape[0] for part in parts)
        panels = pages(-(-out_features // _PANEL_ROWS) * panel_bytes)
        to = panels.data_ptr()
        for part in parts:
            weight_OI = part.data if part.data.stride(1) == 1 else part.data.contiguous()
            rows = part.shape[0]
            _native.dense_repack(
                DTYPES[kind], weight_OI.data_ptr(), weight_OI.stride(0), to, rows, in_features
            )
            to += rows // _PANEL_ROWS * panel_bytes
        return cls(panels, (out_features, in_features), kind)

    @property
    def nbytes(self) -> int:
        return self.panels.numel()

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """x_TI @ W_OI.T + bias_O -> y_TO, in x's type. Sums are float32 throughout."""
        out_features, in_features = self.shape
        if x_TI.stride(-1) != 1:
            x_TI = x_TI.contiguous()
        tokens, stride = len(x_TI), x_TI.stride(0)
        y_TO = x_TI.new_empty((tokens, out_features))
        bias = self._widened(bias_O)
        _native.dense_matmul(
            self._kind,
            DTYPES[x_TI.dtype],
            x_TI.data_ptr(),
            stride,
            self._address,
            bias,
            y_TO.data_ptr(),
            tokens,
            out_features,
            in_features,
        )
        return y_TO

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Rows starts[e] to starts[e + 1] of x (int32) times matrix e of the E that are stacked
        here, plus its part of the bias -> y_NR, in x's type."""
        out_features, in_features = self.shape
        if x_NI.stride(-1) != 1:
            x_NI = x_NI.contiguous()
        matrices = len(starts_E1) - 1
        rows = out_features // matrices
        y_NR = x_NI.new_empty((len(x_NI), rows))
        _native.dense_grouped(
            self._kind,
            DTYPES[x_NI.dtype],
            x_NI.data_ptr(),
            x_NI.stride(0),
            self._address,
            self._widened(bias_O),
            y_NR.data_ptr(),
            starts_E1.data_ptr(),
            matrices,
            rows,
            in_features,
        )
        return y_NR

    def _widened(self, bias_O: Tensor | None) -> int:
        """The address of a bias in float32. A layer's is always the same: it is widened once."""
        if bias_O is not self._given:
            self._given, self._bias = bias_O, None if bias_O is None else bias_O.float()
        return 0 if self._bias is None else self._bias.data_ptr()

    def argmax(self, x_TI: Tensor) -> Tensor:
        """`matmul(x_TI).argmax(-1)` without the product in memory -> ids_T (int64): the lowest id
        among equals, NaN is never the largest, and -1 where the largest is not finite."""
        out_features, in_features = self.shape
        if x_TI.stride(-1) != 1:
            x_TI = x_TI.contiguous()
        ids_T = x_TI.new_empty(len(x_TI), dtype=torch.int64)
        _native.dense_argmax(
            self._kind,
            DTYPES[x_TI.dtype],
            x_TI.data_ptr(),
            x_TI.stride(0),
            self._address,
            ids_T.data_ptr(),
            len(x_TI),
            out_features,
            in_features,
        )
        return ids_T

    def rows(self, ids_T: Tensor) -> Tensor:
        out_features, in_features = self.shape
        ids_T = ids_T.to(torch.int64).contiguous()
        x_TI = torch.empty((len(ids_T), in_features), dtype=self.dtype)
        _native.dense_rows(
            self._kind,
            self._kind,
            self._address,
            ids_T.data_ptr(),
            x_TI.data_ptr(),
            len(ids_T),
            out_features,
            in_features,
        )
        return x_TI

    def to_dense(self) -> Dense:
        return Dense(self.rows(torch.arange(self.shape[0])))
