"""Activations that are rounded to int8 before a product, where a scheme does not round them as the
layout `w8a8` does: with a stored scale, or with a zero point for each token.

Suffixes: O rows, I columns, P columns and those that are added, T tokens, N rows of x for stacked
matrices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from inferno.nn import W8A8, Weight, Wrapper
from inferno.nn.weight import with_biases
from inferno_compressed_tensors.packing import ADDED

_MOST = 127
"""The greatest magnitude of an integer that a kernel of `w8a8` multiplies."""
_FEW = 8
"""Up to this many tokens, reading the matrix is what a product costs."""


@frozen
class Rounding:
    """How a token x becomes integers: q = round(x / scale + zero), from -128 to 127. Its value is
    (q - zero) · scale."""

    scale: float | None
    """Of all tokens; None: that of a token spreads its least and its greatest value, and 0, over
    -128 to 127, and so does its zero point."""
    zero: float = 0.0
    """The zero point, with a scale."""

    def apply(self, x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Return the integers q - zero, float32 (T, I), of at most 255; and the scales, float32
        (T, 1). A token with an infinity or NaN gets the scale NaN."""
        x_TI = x_TI.float()
        finite_T1 = x_TI.isfinite().all(-1, keepdim=True)
        x_TI = x_TI.masked_fill(~finite_T1, 0.0)
        if self.scale is not None:
            scale_T1 = torch.full_like(x_TI[..., :1], self.scale)
            zero_T1 = torch.full_like(scale_T1, self.zero)
        else:
            low_T1 = x_TI.amin(-1, keepdim=True).clamp(max=0)
            high_T1 = x_TI.amax(-1, keepdim=True).clamp(min=0)
            scale_T1 = (high_T1 - low_T1) / 255
            scale_T1 = scale_T1.masked_fill(scale_T1 == 0, torch.finfo(torch.float32).eps)
            zero_T1 = (-128 - low_T1 / scale_T1).clamp(-128, 127).round()
        q_TI = (x_TI / scale_T1 + zero_T1).round().clamp(-128, 127)
        return q_TI - zero_T1, scale_T1.masked_fill(~finite_T1, torch.nan)


class RoundedInputs(Wrapper):
    """A matrix whose activations are rounded by a `Rounding`.

    `inner` is a `W8A8`, or what a kernel makes of one, with `ADDED` columns of zeros at the end.
    A kernel rounds each token so that its greatest magnitude becomes 127. Here, 127 is put into an
    added column, so that integers stay what they are; those beyond 127 take further products.
    """

    def __init__(self, inner: Weight, rounding: Rounding) -> None:
        super().__init__(inner)
        self.shape = (inner.shape[0], inner.shape[1] - ADDED)
        self.rounding = rounding

    @classmethod
    def of(cls, weight: W8A8, rounding: Rounding) -> RoundedInputs:
        """Add the columns to a matrix."""
        zeros_O1 = weight.zeros
        fill_O1 = torch.full((weight.shape[0], 1), 128) if zeros_O1 is None else zeros_O1.round()
        added_OI = fill_O1.to(torch.uint8).to(weight.data.device).expand(-1, ADDED)
        data_OP = torch.cat([weight.data, added_OI], 1)
        return cls(W8A8(data_OP, weight.scales, zeros_O1, weight.dtype), rounding)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        q_TI, scales_T1 = self.rounding.apply(x_TI)
        if isinstance(self.inner, W8A8):
            y_TO = self.inner.multiply(_padded(q_TI, 0), scales_T1)
        else:
            sums_TO = self._sums(q_TI.reshape(-1, q_TI.shape[-1]))
            y_TO = sums_TO.view(*q_TI.shape[:-1], -1) * scales_T1
        return (y_TO if bias_O is None else y_TO + bias_O).to(x_TI.dtype)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.matmul(x_TI.float(), None if bias_O is None else bias_O.float())

    def _sums(self, q_TI: Tensor) -> Tensor:
        """Return the inner product of integers of at most 255."""
        part_TI = q_TI.clamp(-_MOST, _MOST)
        if len(q_TI) <= _FEW:  # all products at once, whatever the values are: steps are replayed
            second_TI = (q_TI - part_TI).clamp(-_MOST, _MOST)
            parts = [part_TI, second_TI, q_TI - part_TI - second_TI]
            sums_3TO = self.inner.matmul(_padded(torch.cat(parts), _MOST))
            return sums_3TO.view(3, len(q_TI), -1).sum(0)
        sums_TO, rest_TI = self.inner.matmul(_padded(part_TI, _MOST)), q_TI - part_TI
        while len(some_T := rest_TI.any(-1).nonzero()[:, 0]):
            part_TI = rest_TI[some_T].clamp(-_MOST, _MOST)
            sums_TO.index_add_(0, some_T, self.inner.matmul(_padded(part_TI, _MOST)))
            rest_TI[some_T] -= part_TI
        return sums_TO

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        q_NI, scales_N1 = self.rounding.apply(x_NI)
        if isinstance(self.inner, W8A8):
            y_NO = self.inner.multiply_groups(_padded(q_NI, 0), scales_N1, starts_E1)
        else:
            y_NO = torch.zeros(len(q_NI), self.shape[0] // (len(starts_E1) - 1))
            while q_NI.any():
                part_NI = q_NI.clamp(-_MOST, _MOST)
                y_NO += self.inner.grouped(_padded(part_NI, _MOST), starts_E1)
                q_NI = q_NI - part_NI
            y_NO *= scales_N1
        return with_biases(y_NO.to(x_NI.dtype), starts_E1, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.inner.rows(ids_T)[..., :-ADDED]

    def around(self, inner: Weight) -> RoundedInputs:
        return RoundedInputs(inner, self.rounding)

    def joins(self, other: Weight) -> bool:
        return isinstance(other, RoundedInputs) and other.rounding == self.rounding


def _padded(q_TI: Tensor, last: int) -> Tensor:
    """Add columns of zeros, but for the last one."""
    return torch.cat([F.pad(q_TI, (0, ADDED - 1)), torch.full_like(q_TI[..., :1], last)], -1)
