"""Quantized matrices in panels that the kernels stream.

Suffixes: E stacked matrices of R rows each, N rows of x among them; O rows (output features), I
columns (input features), B bytes of a row as loaded, G groups of columns, T tokens.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from inferno.errors import InfernoError
from inferno.nn import Weight
from inferno_cpu import _native
from inferno_cpu.layouts import DTYPES, LAYOUTS, nbytes, refuses
from inferno_cpu.memory import pages

_DTYPES = {getattr(torch, name): number for name, number in DTYPES.items()}


class Blocks(Protocol):
    """A matrix as a checkpoint holds it: `data` (O, B) in ggml's blocks, named by `layout` in lower
    case."""

    layout: str
    data: Tensor
    shape: tuple[int, int]


class PackedPanels(Weight):
    """A quantized matrix, multiplied as it is by rows that are rounded to int8 in groups of 32.

    A row of x that holds an infinity or NaN gives a row of NaN.
    """

    panels: Tensor

    def __init__(
        self, layout: str, shape: tuple[int, int], dtype: torch.dtype, panels: Tensor
    ) -> None:
        """`panels` as `pack` returns them; `dtype` is what `rows` are given in."""
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        self.register_buffer("panels", panels, persistent=False)
        # What a call needs, so that it costs little more than the kernel.
        self._number, self._address = LAYOUTS[layout].number, panels.data_ptr()
        self._out, self._in = shape

    @classmethod
    def of(cls, *parts: Blocks, dtype: torch.dtype) -> PackedPanels:
        """Repacks `parts` of one layout, stacked along the rows, for activations of `dtype`; all
        but the last have whole panels. Raises where `refuses` has a reason."""
        layout, columns = parts[0].layout, parts[0].shape[1]
        rows = sum(part.shape[0] for part in parts)
        panels = pages(nbytes(layout, (rows, columns)))
        done = 0
        for part in parts:
            pack(
                layout,
                part.shape,
                part.data,
                dtype=dtype,
                panels=panels[nbytes(layout, (done, columns)) :],
            )
            done += part.shape[0]
        return cls(layout, (rows, columns), dtype, panels)

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """x_TI @ W_OI.T (+ bias_O) -> y_TO, all in x's type."""
        x_TI = x_TI.contiguous()
        dtype = x_TI.dtype
        tokens = x_TI.numel() // self._in
        y_TO = torch.empty((*x_TI.shape[:-1], self._out), dtype=dtype)
        number = _DTYPES[dtype]
        bias = 0 if bias_O is None else bias_O.data_ptr()
        _native.packed_matmul(
            self._number,
            self._address,
            number,
            x_TI.data_ptr(),
            number,
            y_TO.data_ptr(),
            bias,
            tokens,
            self._out,
            self._in,
        )
        return y_TO

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Rows starts[e] to starts[e + 1] of x (int32) times matrix e of the E that are stacked
        here, plus its part of the bias -> y_NR, all in x's type."""
        x_NI = x_NI.contiguous()
        dtype, matrices = _DTYPES[x_NI.dtype], len(starts_E1) - 1
        rows = self._out // matrices
        y_NR = x_NI.new_empty((len(x_NI), rows))
        bias = 0 if bias_O is None else bias_O.data_ptr()
        _native.packed_grouped(
            self._number,
            self._address,
            dtype,
            x_NI.data_ptr(),
            dtype,
            y_NR.data_ptr(),
            bias,
            starts_E1.data_ptr(),
            matrices,
            rows,
            self._in,
        )
        return y_NR

    def argmax(self, x_TI: Tensor) -> Tensor:
        """ids_T of the greatest finite products of each row, the lowest of equal ones; -1 where
        none is finite. As exact as the kernel: the products are not rounded to x's type first."""
        x_TI = x_TI.contiguous()
        ids_T = torch.empty(x_TI.shape[:-1], dtype=torch.int64)
        to, count = ids_T.data_ptr(), ids_T.numel()
        _native.packed_argmax(
            self._number,
            self._address,
            _DTYPES[x_TI.dtype],
            x_TI.data_ptr(),
            to,
            count,
            self._out,
            self._in,
        )
        return ids_T

    def rows(self, ids_T: Tensor) -> Tensor:
        """W_OI[ids_T] -> x_TI, rounded once from the exact values; zeros for ids out of range."""
        ids_T = ids_T.to(torch.int64).contiguous()
        x_TI = torch.empty((*ids_T.shape, self._in), dtype=self.dtype)
        to, count = x_TI.data_ptr(), ids_T.numel()
        _native.packed_rows(
            self._number,
            self._address,
            ids_T.data_ptr(),
            _DTYPES[self.dtype],
            to,
            count,
            self._out,
            self._in,
        )
        return x_TI


def pack(
    layout: str,
    shape: tuple[int, ...],
    data: Tensor,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    *,
    dtype: torch.dtype,
    panels: Tensor | None = None,
) -> Tensor:
    """The panels of a matrix (O, I), or of a stack (E, O, I): E sets of panels, one after the
    other.

    `data` uint8 (..., O, B): ggml's blocks. For int4: two codes to a byte, the low nibble first,
    and float16 `scales` and `zeros` (..., O, G): w = scale * (code - zero). `panels`: where they
    shall lie. Raises InfernoError where `refuses` has a reason or the sizes differ.
    """
    reason = refuses(layout, str(dtype).removeprefix("torch."), shape) or _misfit(
        layout, shape, data, scales, zeros
    )
    if reason:
        raise InfernoError(
            f"cannot pack a matrix: {reason}", "let another kernel take it, or convert the model"
        )
    number, (rows, columns) = LAYOUTS[layout].number, shape[-2:]
    panels = pages(nbytes(layout, shape)) if panels is None else panels[: nbytes(layout, shape)]
    stack = panels.numel() // nbytes(layout, shape[-2:])
    data, grids = (
        data.contiguous(),
        [None if t is None else t.contiguous() for t in (scales, zeros)],
    )
    for e in range(stack):
        addresses = [0 if t is None else t.data_ptr() + e * t.nbytes // stack for t in grids]
        source, to = (
            data.data_ptr() + e * data.nbytes // stack,
            panels.data_ptr() + e * panels.nbytes // stack,
        )
        _native.packed_repack(number, source, data.shape[-1], *addresses, to, rows, columns)
    return panels


def _misfit(
    layout: str, shape: tuple[int, ...], data: Tensor, scales: Tensor | None, zeros: Tensor | None
) -> str | None:
    """Why the tensors are not a matrix of this shape, or None."""
    blocks = shape[-1] // LAYOUTS[layout].block
    expected = (*shape[:-1], blocks * LAYOUTS[layout].block_bytes)
    if data.dtype != torch.uint8 or tuple(data.shape) != expected:
        return (
            f"{layout} of shape {shape} needs bytes of shape {expected}, got {data.dtype} "
            f"of {tuple(data.shape)}"
        )
    for grid in (scales, zeros):
        if not layout.startswith("int4"):
            if grid is not None:
                return f"{layout} holds its scales in its blocks"
        elif (
            grid is None
            or grid.dtype != torch.float16
            or tuple(grid.shape) != (*shape[:-1], blocks)
        ):
            return (
                f"{layout} of shape {shape} needs scales and zero points in float16 of "
                f"shape {(*shape[:-1], blocks)}"
            )
    return None
