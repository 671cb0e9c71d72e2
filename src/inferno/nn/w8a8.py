"""Matrices of 8-bit integers that are multiplied by activations rounded to 8 bits, as schemes with
quantized activations define it (`contracts.W8A8Layout`), with their reference in torch's operators.

Suffixes: O rows, I columns, T tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import W8A8Layout
from inferno.errors import CheckpointError
from inferno.nn.cut import Cut
from inferno.nn.packed import CHUNK, Packed
from inferno.nn.weight import Weight, with_biases


class W8A8(Packed):
    """8-bit integers with a scale, and perhaps a zero point, for each row: value = scale · (code -
    zero). A product rounds each token to int8 with its own scale.

    `data` is uint8 (O, I). `scales` and `zeros` are float32 (O, 1); without `zeros`, every zero
    point is 128.
    """

    data: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self, data_OI: Tensor, scales_O1: Tensor, zeros_O1: Tensor | None, dtype: torch.dtype
    ) -> None:
        """`dtype` is the compute type: that of `rows`. Raises CheckpointError for a scale that is
        not finite."""
        super().__init__()
        for grid in (scales_O1, zeros_O1):
            assert grid is None or (grid.dtype, *grid.shape) == (torch.float32, len(data_OI), 1)
        if not scales_O1.isfinite().all():
            raise CheckpointError(
                "a scale is infinite or not a number",
                "The checkpoint is damaged: download or quantize it again.",
            )
        self.shape, self.dtype = (data_OI.shape[0], data_OI.shape[1]), dtype
        self.layout = W8A8Layout(symmetric=zeros_O1 is None).name
        self.register_buffer("data", data_OI)
        self.register_buffer("scales", scales_O1)
        self.register_buffer("zeros", zeros_O1)

    def integers(self, rows: slice | Tensor) -> Tensor:
        """Return code - zero of rows, in float32."""
        return self.data[rows].float() - (128.0 if self.zeros is None else self.zeros[rows])

    def values(self, rows: slice | Tensor) -> Tensor:
        return self.scales[rows] * self.integers(rows)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return (q_TI @ (code - zero)_OI.T) · x's scales · W's scales + bias_O, where q_TI are the
        integers of `rounded_tokens`."""
        return self.multiply(*rounded_tokens(x_TI), bias_O).to(x_TI.dtype)

    def multiply(self, q_TI: Tensor, scales_T1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return the product, in float32, with activations that are rounded already: integers,
        and a scale for each token, both in float32."""
        out_features, in_features = self.shape
        y_TO = q_TI.new_empty((*q_TI.shape[:-1], out_features))
        step = max(1, CHUNK // max(1, in_features))
        for start in range(0, out_features, step):
            chunk = slice(start, start + step)
            product = self._product(q_TI, scales_T1, chunk)
            y_TO[..., chunk] = product if bias_O is None else product + bias_O[chunk]
        return y_TO

    def _product(self, q_TI: Tensor, scales_T1: Tensor, rows: slice) -> Tensor:
        return F.linear(q_TI, self.integers(rows)) * scales_T1 * self.scales[rows, 0]

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_NO = self.multiply_groups(*rounded_tokens(x_NI), starts_E1).to(x_NI.dtype)
        return with_biases(y_NO, starts_E1, bias_O)

    def multiply_groups(self, q_NI: Tensor, scales_N1: Tensor, starts_E1: Tensor) -> Tensor:
        """As `multiply`, of stacked matrices and the rows that `Weight.grouped` gives each."""
        starts = starts_E1.tolist()
        rows = self.shape[0] // (len(starts) - 1)
        y_NO = q_NI.new_empty(len(q_NI), rows)
        for expert, (start, stop) in enumerate(itertools.pairwise(starts)):
            of, span = slice(expert * rows, (expert + 1) * rows), slice(start, stop)
            if stop > start:
                y_NO[span] = self._product(q_NI[span], scales_N1[span], of)
        return y_NO

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        alike = [
            w
            for w in others
            if isinstance(w, W8A8) and (w.layout, w.dtype) == (self.layout, self.dtype)
        ]
        if len(alike) != len(others) or any(w.shape[1] != self.shape[1] for w in alike):
            return None
        every = [self, *alike]
        zeros = [w.zeros for w in every if w.zeros is not None]
        return W8A8(
            torch.cat([w.data for w in every]),
            torch.cat([w.scales for w in every]),
            torch.cat(zeros) if zeros else None,
            self.dtype,
        )

    def cut(self, cut: Cut) -> Weight:
        assert not cut.axis, "the plan does not divide columns whose activations share a scale"
        parts = [None if t is None else cut.of(t).contiguous() for t in (self.scales, self.zeros)]
        scales_O1, zeros_O1 = parts
        assert scales_O1 is not None, "there are always scales"
        return W8A8(cut.of(self.data).contiguous(), scales_O1, zeros_O1, self.dtype)


def rounded_tokens(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Round each token to integers of -127 to 127. Returns these, float32 (T, I), and the scales,
    float32 (T, 1): the largest magnitude of the token / 127. A token with an infinity or NaN gets
    the scale NaN."""
    x_TI = x_TI.float()
    most_T1 = x_TI.abs().amax(-1, keepdim=True)
    small_T1 = most_T1 < 2.0**-100  # their reciprocal may overflow
    inverse_T1 = (127 / most_T1).masked_fill(small_T1 | ~most_T1.isfinite(), 0)
    scales_T1 = (most_T1 / 127).masked_fill(small_T1, 0).masked_fill(~most_T1.isfinite(), torch.nan)
    q_TI = (x_TI.nan_to_num(0, 0, 0) * inverse_T1).round()
    return q_TI, scales_T1
