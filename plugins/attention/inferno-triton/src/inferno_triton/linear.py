"""The provider's `linear`: 4-bit matrices in groups stay packed, and few tokens take the kernel.

Suffixes: O rows (output features), I columns (input features), T tokens, P splits of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from inferno.nn import IntGroups, Weight
from inferno_triton import packed

MAX_TOKENS = 64
"""More are multiplied by the unpacked matrix: unpacking it once is cheaper then."""

COLUMNS = 128
"""Columns of a tile: a matrix has whole ones."""

_OUTPUTS = 64
_PROGRAMS = 264
"""Columns are split until there are as many programs: two for each multiprocessor of an H100."""


class PackedInt4(Weight):
    """A 4-bit matrix in groups."""

    def __init__(self, inner: IntGroups) -> None:
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        x = x_TI.reshape(-1, x_TI.shape[-1])
        T, (O, I) = len(x), self.shape  # noqa: E741
        if not 0 < T <= MAX_TOKENS:
            return self.inner.matmul(x_TI, bias_O)
        inner, tokens = self.inner, max(16, triton.next_power_of_2(T))
        blocks = triton.cdiv(O, _OUTPUTS)
        P = max(1, min(I // COLUMNS, _PROGRAMS // blocks))
        out_PTO = x.new_empty(P, T, O, dtype=torch.float32)
        packed.int4_product[(blocks, 1, P)](
            x,
            inner.data,
            inner.scales,
            inner.scales if inner.zeros is None else inner.zeros,
            out_PTO,
            T,
            O,
            I,
            x.stride(0),
            P,
            GROUP=inner.group,
            BO=_OUTPUTS,
            BT=tokens,
            BK=COLUMNS,
            ZEROS=inner.zeros is not None,
            num_warps=4,
            num_stages=3,
        )
        y_TO = out_PTO.sum(0) if P > 1 else out_PTO[0]
        if bias_O is not None:
            y_TO = y_TO + bias_O
        return y_TO.to(x.dtype).view(*x_TI.shape[:-1], O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.inner.rows(ids_T)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.grouped(x_NI, starts_E1, bias_O)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        return stack(self, *others)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"


def stack(*weights: Weight) -> Weight | None:
    """Stack matrices along the rows; None if they are not all such, or have other groups."""
    first, *others = (w.inner if isinstance(w, PackedInt4) else w for w in weights)
    whole = first.concatenate(others) if others else first
    if not isinstance(whole, IntGroups) or whole.bits != 4 or whole.shape[1] % COLUMNS:
        return None
    return PackedInt4(whole)
