"""A matrix as the layers see it: something to multiply by and to take rows of.

Suffixes: O rows (output features), I columns (input features), T tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn import ops


class Weight(nn.Module):
    """A matrix of O rows and I columns. How it is stored is its own business."""

    shape: tuple[int, int]
    layout: str = ""
    """How it is stored, as kernels are asked for it: a dtype's name, or what its scheme calls it.
    Empty: its own way."""

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """x_TI @ W_OI.T + bias_O -> y_TO, in x's type."""
        raise NotImplementedError

    def rows(self, ids_T: Tensor) -> Tensor:
        """W_OI[ids_T] -> x_TI, in the compute type."""
        raise NotImplementedError

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """As E matrices of O / E rows each, one below the other: rows starts[e] to starts[e + 1] of
        x (int32; from 0 to N) times matrix e, plus its part of the bias, (N, O / E).

        The default takes the rows of the matrices in use: all at once for few, matrix by matrix for
        many."""
        num_experts, num_rows = len(starts_E1) - 1, self.shape[0] // (len(starts_E1) - 1)
        rows_O = torch.arange(num_rows, device=x_NI.device)
        if len(x_NI) <= _UNPACK_ROWS:
            counts_E = starts_E1.diff()
            expert_N = torch.repeat_interleave(
                torch.arange(num_experts, device=x_NI.device), counts_E, output_size=len(x_NI)
            )
            weight_NOI = self.rows((expert_N[:, None] * num_rows + rows_O).flatten()).view(
                len(x_NI), num_rows, self.shape[1]
            )
            y_NO = torch.bmm(weight_NOI.to(x_NI.dtype), x_NI[..., None])[..., 0]
            return with_biases(y_NO, starts_E1, bias_O)
        y_NO = x_NI.new_empty(len(x_NI), num_rows)
        starts = starts_E1.tolist()
        for expert, (start, stop) in enumerate(itertools.pairwise(starts)):
            if stop > start:
                y_NO[start:stop] = F.linear(
                    x_NI[start:stop], self.rows(expert * num_rows + rows_O).to(x_NI.dtype)
                )
        return with_biases(y_NO, starts_E1, bias_O)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        """One weight for this and `others` stacked along O, or None when their layouts do not allow
        it."""
        return None

    def for_matmul(self) -> Weight:
        """Return this matrix as torch multiplies by it fastest, for `matmul` only. May take its
        memory over: the caller drops this one."""
        return self


_UNPACK_ROWS = 32
"""Rows up to which a matrix of each row's own is unpacked."""


def with_biases(y_NO: Tensor, starts_E1: Tensor, bias_O: Tensor | None) -> Tensor:
    """y + the biases of a `Weight.grouped`, if there are any."""
    if bias_O is None:
        return y_NO
    bias_EO = bias_O.view(len(starts_E1) - 1, -1)
    return y_NO + bias_EO.repeat_interleave(starts_E1.diff(), dim=0, output_size=len(y_NO))


class Unloaded(Weight):
    """Holds the place, and the shape, until the loader comes."""

    def __init__(self, out_features: int, in_features: int) -> None:
        super().__init__()
        self.shape = (out_features, in_features)


class Dense(Weight):
    """A plain matrix."""

    def __init__(self, weight_OI: Tensor) -> None:
        super().__init__()
        out_features, in_features = weight_OI.shape
        self.shape = (out_features, in_features)
        self.data: Tensor
        self.register_buffer("data", weight_OI)
        self.ops = ops.TORCH
        self.layout = str(weight_OI.dtype).removeprefix("torch.")

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return F.linear(x_TI, self.data, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.ops.gather(self.data, ids_T)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        # torch 2.10 has it, for rows of whole 16 bytes.
        if not hasattr(F, "grouped_mm") or self.shape[1] * self.data.itemsize % 16:
            return super().grouped(x_NI, starts_E1, bias_O)
        weight_EOI = self.data.view(len(starts_E1) - 1, -1, self.shape[1])
        return with_biases(
            F.grouped_mm(x_NI, weight_EOI.transpose(1, 2), offs=starts_E1[1:]), starts_E1, bias_O
        )

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        if not all(isinstance(w, Dense) and w.data.dtype == self.data.dtype for w in others):
            return None
        return Dense(torch.cat([self.data, *(w.data for w in others if isinstance(w, Dense))]))

    def for_matmul(self) -> Weight:
        """On a CPU with bfloat16 instructions: oneDNN's layout, by which a few rows are multiplied
        at twice the speed of the plain one."""
        data = self.data
        if data.device.type == "cpu" and data.dtype == torch.bfloat16 and onednn_packs_bfloat16():
            return OneDNN(data)
        return self


class OneDNN(Weight):
    """A bfloat16 matrix in oneDNN's blocked layout. It has no rows to give."""

    def __init__(self, weight_OI: Tensor) -> None:
        super().__init__()
        out_features, in_features = weight_OI.shape
        self.shape = (out_features, in_features)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _PACK_FOR_ROWS)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_TI, self._packed, bias_O, "none", [], ""
        )
        return y_TO


_PACK_FOR_ROWS = 1
"""Rows of x that the layout is chosen for; others work, at their usual speed."""


def onednn_packs_bfloat16() -> bool:
    """Whether this torch can, on this CPU. The operators are those that torch's own compiler
    emits."""
    operators = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return (
        all(hasattr(torch.ops.mkldnn, name) for name in operators)
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
