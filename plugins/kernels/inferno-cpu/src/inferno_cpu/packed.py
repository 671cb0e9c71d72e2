"""Quantized matrices in panels that are read in order.

Suffixes: E stacked matrices of R rows each, and N rows of x for all of them; O rows (output
features), I columns (input features), B bytes of a row as loaded, G groups of columns, T tokens.
"""

from __future__ import annotations

from typing import Protocol

import torch
from attrs import frozen
from torch import Tensor

from inferno.errors import InfernoError
from inferno.nn import W8A8, IntGroups, Weight
from inferno_cpu import _native
from inferno_cpu.bias import FloatBias
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.layouts import LAYOUTS, SYMMETRIC, nbytes, refuses
from inferno_cpu.memory import pages, pieces

Q8_COLUMNS = LAYOUTS["q8_0"].block


class Blocks(Protocol):
    """A matrix in ggml's blocks: `data` (O, B). `layout` is their name in lower case."""

    layout: str
    data: Tensor
    shape: tuple[int, int]


@frozen(eq=False)
class Stored:
    """A matrix in a layout of `LAYOUTS`: what `pack` takes."""

    layout: str
    shape: tuple[int, int]
    data: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None


def stored(weight: Blocks | IntGroups | W8A8) -> Stored:
    """Return the tensors of a packed weight. 8-bit integers in groups of 32 without zero points
    become q8_0."""
    if not isinstance(weight, IntGroups | W8A8):
        return Stored(weight.layout, weight.shape, weight.data)
    if isinstance(weight, W8A8) or weight.layout not in SYMMETRIC:
        return Stored(weight.layout, weight.shape, weight.data, weight.scales, weight.zeros)
    rows, columns = weight.shape
    codes_OG32 = (weight.data ^ 128).view(rows, columns // Q8_COLUMNS, Q8_COLUMNS)
    scales_OG = weight.scales.repeat_interleave(weight.group // Q8_COLUMNS, 1)
    blocks = torch.cat([scales_OG[..., None].view(torch.uint8), codes_OG32], -1)
    return Stored("q8_0", weight.shape, blocks.flatten(1))


class PackedPanels(Weight):
    """A quantized matrix. Rows of x are rounded to int8: in groups of 32, but for the
    largest element of a row if it is far above the others, or as a whole for `w8a8`.

    A row of x with an infinity or NaN gives a row of NaN.
    """

    panels: Tensor

    def __init__(
        self, layout: str, shape: tuple[int, int], dtype: torch.dtype, panels: Tensor
    ) -> None:
        """Take `panels` as `pack` returns them; `dtype` is the type of the result of `rows`."""
        super().__init__()
        self.shape = shape
        self.dtype, self.panel_layout = dtype, layout
        self.register_buffer("panels", panels, persistent=False)
        # The arguments of a call, so that it costs little more than the kernel.
        self._number, self._address = LAYOUTS[layout].number, panels.data_ptr()
        self._out, self._in = shape
        self._float_bias = FloatBias()

    @classmethod
    def of(cls, *weights: Blocks | IntGroups | W8A8, dtype: torch.dtype) -> PackedPanels:
        """Repack `weights` of one layout, stacked along the rows, for activations of `dtype`. The
        rows of all but the last must be divisible by 16. Raises InfernoError if `refuses` does."""
        parts = [stored(weight) for weight in weights]
        layout, columns = parts[0].layout, parts[0].shape[1]
        rows = sum(part.shape[0] for part in parts)
        panels = pages(nbytes(layout, (rows, columns)))
        done = 0
        for part in parts:
            for piece in pieces(part.data):
                data = part.data[piece]
                pack(
                    layout,
                    (len(data), columns),
                    data,
                    *(None if grid is None else grid[piece] for grid in (part.scales, part.zeros)),
                    dtype=dtype,
                    panels=panels[nbytes(layout, (done, columns)) :],
                )
                done += len(data)
        return cls(layout, (rows, columns), dtype, panels)

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return y_TO = x_TI @ W_OI.T (+ bias_O), all in x's type."""
        return self._product(x_TI, bias_O, x_TI.dtype)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self._product(x_TI, self._float_bias.of(bias_O), torch.float32)

    def _product(self, x_TI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
        """`dtype` is that of the result and of the bias."""
        x_TI = x_TI.contiguous()
        tokens = x_TI.numel() // self._in
        y_TO = torch.empty((*x_TI.shape[:-1], self._out), dtype=dtype)
        bias = 0 if bias_O is None else bias_O.data_ptr()
        _native.packed_matmul(
            self._number,
            self._address,
            DTYPES[x_TI.dtype],
            x_TI.data_ptr(),
            DTYPES[dtype],
            y_TO.data_ptr(),
            bias,
            tokens,
            self._out,
            self._in,
        )
        return y_TO

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Multiply rows starts[e] .. starts[e + 1] of x by matrix e of the E that are stacked here,
        and add its part of the bias. Returns y_NR, all in x's type; starts are int32."""
        x_NI = x_NI.contiguous()
        dtype, matrices = DTYPES[x_NI.dtype], len(starts_E1) - 1
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
        """Return ids_T of the largest finite product of each row: the lowest id among equals, -1 if
        none is finite. Products are compared in float32, not rounded to x's type."""
        x_TI = x_TI.contiguous()
        ids_T = torch.empty(x_TI.shape[:-1], dtype=torch.int64)
        to, count = ids_T.data_ptr(), ids_T.numel()
        _native.packed_argmax(
            self._number,
            self._address,
            DTYPES[x_TI.dtype],
            x_TI.data_ptr(),
            to,
            count,
            self._out,
            self._in,
        )
        return ids_T

    def rows(self, ids_T: Tensor) -> Tensor:
        """Return x_TI = W_OI[ids_T], rounded once from the exact values; zeros for invalid ids."""
        ids_T = ids_T.to(torch.int64).contiguous()
        x_TI = torch.empty((*ids_T.shape, self._in), dtype=self.dtype)
        to, count = x_TI.data_ptr(), ids_T.numel()
        _native.packed_rows(
            self._number,
            self._address,
            ids_T.data_ptr(),
            DTYPES[self.dtype],
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
    """Repack a matrix (O, I), or a stack (E, O, I) of them, and return the panels: for a stack E
    contiguous sets.

    `data`, uint8 (..., O, B), holds ggml's blocks; for int8 a code per byte, for int4 two, the low
    nibble first, with float16 `scales` and `zeros` (..., O, G): w = scale * (code - zero). For w8a8
    these are float32 (..., O, 1). Symmetric layouts have no `zeros`. `panels` is the memory to
    write to, allocated if absent.
    Raises InfernoError if `refuses` has a reason or a size is wrong.
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
        scales_at, zeros_at = (
            0 if t is None else t.data_ptr() + e * t.nbytes // stack for t in grids
        )
        source, to = (
            data.data_ptr() + e * data.nbytes // stack,
            panels.data_ptr() + e * panels.nbytes // stack,
        )
        _native.packed_repack(
            number, source, data.shape[-1], scales_at, zeros_at, to, rows, columns
        )
    return panels


def _misfit(
    layout: str, shape: tuple[int, ...], data: Tensor, scales: Tensor | None, zeros: Tensor | None
) -> str | None:
    """Return why the tensors are not a matrix of this shape, or None."""
    blocks = shape[-1] // LAYOUTS[layout].block
    expected = (*shape[:-1], blocks * LAYOUTS[layout].block_bytes)
    if data.dtype != torch.uint8 or tuple(data.shape) != expected:
        return (
            f"{layout} of shape {shape} needs bytes of shape {expected}, got {data.dtype} "
            f"of {tuple(data.shape)}"
        )
    in_rows = LAYOUTS[layout].head > 0
    in_groups, symmetric = in_rows or layout.startswith("int"), "_sym" in layout
    kind, grids = (torch.float32, 1) if in_rows else (torch.float16, blocks)
    for grid, wanted in ((scales, in_groups), (zeros, in_groups and not symmetric)):
        if not wanted:
            if grid is not None:
                return (
                    f"{layout} has no {'zero points' if in_groups else 'scales beside its blocks'}"
                )
        elif grid is None or grid.dtype != kind or tuple(grid.shape) != (*shape[:-1], grids):
            return (
                f"{layout} of shape {shape} needs scales and zero points in {kind} of shape "
                f"{(*shape[:-1], grids)}"
            )
    return None
