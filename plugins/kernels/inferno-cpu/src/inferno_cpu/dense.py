"""Matrices of bfloat16, float16 and float32, in panels of sixteen rows that are read in order.

Suffixes: O rows (output features), I columns (input features), T tokens; E stacked matrices of R
rows each, and N rows of x for all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno.nn.weight import Dense, Weight
from inferno_cpu import _native
from inferno_cpu.bias import FloatBias
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.layouts import CODES, DTYPE_NUMBERS, PANEL_ROWS
from inferno_cpu.memory import pages, pieces


def refuses(layout: str, dtype: str, shape: tuple[int, int]) -> str | None:
    """Return why `Panels` cannot hold a matrix stored as `layout`, for activations of `dtype`, or
    None."""
    if layout not in DTYPE_NUMBERS:
        return f"a matrix of {layout} is not one of {', '.join(DTYPE_NUMBERS)}"
    if dtype not in DTYPE_NUMBERS:
        return f"it computes in {', '.join(DTYPE_NUMBERS)}, not in {dtype}"
    if min(shape) < 1:
        return "a matrix without rows or columns has nothing to repack"
    return None


def nbytes(kind: torch.dtype, shape: tuple[int, int]) -> int:
    """Bytes of a matrix in panels."""
    rows, columns = shape
    steps = columns + columns % 2 if kind == torch.bfloat16 else columns
    return -(-rows // PANEL_ROWS) * PANEL_ROWS * steps * kind.itemsize


class Panels(Weight):
    """A matrix of floats in panels of sixteen interleaved rows, the last padded with zeros."""

    panels: Tensor

    def __init__(
        self, panels: Tensor, shape: tuple[int, int], dtype: torch.dtype, layout: str = ""
    ) -> None:
        """Take `panels` as described in native/dense.hpp: bytes, aligned to 64. Their elements are
        of `dtype`, or codes of a layout of `CODES`; then it is the type of the result of `rows`."""
        super().__init__()
        self.shape = shape
        self.dtype, self.panel_layout = dtype, layout
        self.register_buffer("panels", panels, persistent=False)
        self._float_bias = FloatBias()
        self._kind = CODES[layout] if layout else DTYPES[dtype]
        self._address = panels.data_ptr()

    @classmethod
    def of(cls, *parts: Dense) -> Panels:
        """Copy `parts`, stacked along the rows, into panels. The rows of all but the last must be
        divisible by 16."""
        kind, in_features = parts[0].data.dtype, parts[0].shape[1]
        panel_bytes = nbytes(kind, (PANEL_ROWS, in_features))
        out_features = sum(part.shape[0] for part in parts)
        panels = pages(nbytes(kind, (out_features, in_features)))
        to = panels.data_ptr()
        for part in parts:
            weight_OI = part.data if part.data.stride(1) == 1 else part.data.contiguous()
            for rows in pieces(weight_OI):
                piece = weight_OI[rows]
                stride, number = piece.stride(0), DTYPES[kind]
                _native.dense_repack(number, piece.data_ptr(), stride, to, len(piece), in_features)
                to += len(piece) // PANEL_ROWS * panel_bytes
        return cls(panels, (out_features, in_features), kind)

    @property
    def nbytes(self) -> int:
        return self.panels.numel()

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return y_TO = x_TI @ W_OI.T + bias_O in x's type, with float32 sums."""
        return self._product(x_TI, bias_O, x_TI.dtype)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self._product(x_TI, bias_O, torch.float32)

    def _product(self, x_TI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
        out_features, in_features = self.shape
        if x_TI.stride(-1) != 1:
            x_TI = x_TI.contiguous()
        tokens, stride = len(x_TI), x_TI.stride(0)
        y_TO = x_TI.new_empty((tokens, out_features), dtype=dtype)
        bias = self._address_of(bias_O)
        _native.dense_matmul(
            self._kind,
            DTYPES[x_TI.dtype],
            x_TI.data_ptr(),
            stride,
            self._address,
            bias,
            DTYPES[dtype],
            y_TO.data_ptr(),
            tokens,
            out_features,
            in_features,
        )
        return y_TO

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Multiply rows starts[e] .. starts[e + 1] of x by matrix e of the E that are stacked here,
        and add its part of the bias. Returns y_NR in x's type; starts are int32."""
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
            self._address_of(bias_O),
            y_NR.data_ptr(),
            starts_E1.data_ptr(),
            matrices,
            rows,
            in_features,
        )
        return y_NR

    def _address_of(self, bias_O: Tensor | None) -> int:
        """Return the address of the bias in float32, or 0."""
        bias_O = self._float_bias.of(bias_O)
        return 0 if bias_O is None else bias_O.data_ptr()

    def argmax(self, x_TI: Tensor) -> Tensor:
        """Return `matmul_float32(x_TI).argmax(-1)` (int64) without storing the product: the lowest
        id among equals, ignoring NaN, and -1 if the maximum is not finite."""
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
            DTYPES[self.dtype],
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
