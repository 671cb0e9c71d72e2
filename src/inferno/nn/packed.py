"""Matrices in public packed layouts (`contracts.IntLayout`), and weights around other weights.

`IntGroups` is the reference, in torch's own operators: right for every shape, and bound by the
unpacking. Kernels read its tensors.

Suffixes: O rows, I columns, B bytes of a row of codes, G groups of columns, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import IntLayout
from inferno.errors import CheckpointError
from inferno.nn.cut import Cut
from inferno.nn.weight import Weight

CHUNK = 1 << 20
"""Values dequantized at once: 4 MiB of float32, which stay in the CPU cache until they are
multiplied."""


class Packed(Weight):
    """Base class of packed matrices whose rows are dequantized a few at a time. Subclasses define
    `values`, and `dtype`, the compute type."""

    dtype: torch.dtype

    def values(self, rows: slice | Tensor) -> Tensor:
        """Return rows in float32, (T, I)."""
        raise NotImplementedError

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        out_features, in_features = self.shape
        y_TO = x_TI.new_empty((*x_TI.shape[:-1], out_features))
        step = max(1, CHUNK // max(1, in_features))
        for start in range(0, out_features, step):
            chunk = slice(start, start + step)
            weight_OI = self.values(chunk).to(x_TI.dtype)
            y_TO[..., chunk] = F.linear(x_TI, weight_OI, None if bias_O is None else bias_O[chunk])
        return y_TO

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.matmul(x_TI.float(), None if bias_O is None else bias_O.float())

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.values(ids_T).to(self.dtype)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"


class IntGroups(Packed):
    """Integers in groups of columns: value = scale · (code - zero).

    `data` is uint8 (O, B): a code of 8 bits per byte, or two of 4 bits, the earlier column in the
    low half. `scales` and `zeros` are float16 (O, G); without `zeros`, every zero point is 8 or
    128.
    """

    data: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self,
        data_OB: Tensor,
        scales_OG: Tensor,
        zeros_OG: Tensor | None,
        bits: Literal[4, 8],
        dtype: torch.dtype,
    ) -> None:
        """`dtype` is the compute type: that of `rows`."""
        super().__init__()
        rows, columns = data_OB.shape[0], data_OB.shape[1] * 8 // bits
        assert bits in (4, 8) and columns % scales_OG.shape[1] == 0, "the scheme has checked them"
        for grid in (scales_OG, zeros_OG):
            assert grid is None or (grid.dtype, *grid.shape) == (torch.float16, *scales_OG.shape)
        self.shape, self.bits, self.dtype = (rows, columns), bits, dtype
        self.group = columns // scales_OG.shape[1]
        self.layout = IntLayout(bits=bits, group=self.group, symmetric=zeros_OG is None).name
        self.register_buffer("data", data_OB)
        self.register_buffer("scales", scales_OG)
        self.register_buffer("zeros", zeros_OG)

    @classmethod
    def of(
        cls,
        data_OB: Tensor,
        scales_OG: Tensor,
        zeros_OG: Tensor | None,
        *,
        layout: IntLayout,
        group: int,
        dtype: torch.dtype,
    ) -> IntGroups:
        """Hold `data` in a layout that `IntLayout.fitting` found for groups of `group` columns,
        with scales and zero points repeated as often as needed. Raises CheckpointError for a scale
        that is not finite in float16."""
        columns = data_OB.shape[1] * 8 // layout.bits
        stored_G = torch.arange(columns // layout.group, device=data_OB.device)
        stored_G = stored_G * layout.group // group
        scales_OG = scales_OG[:, stored_G].half()
        if not scales_OG.isfinite().all():
            raise CheckpointError(
                "a scale is infinite, not a number, or too large for float16",
                "The checkpoint is damaged: download or quantize it again.",
            )
        zeros_OG = None if zeros_OG is None else zeros_OG[:, stored_G].half()
        return cls(data_OB.contiguous(), scales_OG, zeros_OG, layout.bits, dtype)

    def values(self, rows: slice | Tensor) -> Tensor:
        data_TB, scales_TG1 = self.data[rows], self.scales[rows].float()[..., None]
        codes_TI = data_TB if self.bits == 8 else torch.stack([data_TB & 15, data_TB >> 4], -1)
        codes_TGi = codes_TI.reshape(len(data_TB), scales_TG1.shape[1], self.group).float()
        half = 1 << self.bits - 1
        zeros_TG1 = half if self.zeros is None else self.zeros[rows].float()[..., None]
        return (scales_TG1 * (codes_TGi - zeros_TG1)).flatten(1)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        alike = [
            w
            for w in others
            if isinstance(w, IntGroups) and (w.layout, w.dtype) == (self.layout, self.dtype)
        ]
        if len(alike) != len(others) or any(w.shape[1] != self.shape[1] for w in alike):
            return None
        every = [self, *alike]
        zeros = [w.zeros for w in every if w.zeros is not None]
        return IntGroups(
            torch.cat([w.data for w in every]),
            torch.cat([w.scales for w in every]),
            torch.cat(zeros) if zeros else None,
            self.bits,
            self.dtype,
        )

    def cut(self, cut: Cut) -> Weight:
        group = (self.group, 1) if cut.axis else (1, 1)
        grids = [None if g is None else cut.of(g, *group) for g in (self.scales, self.zeros)]
        data_OB = cut.of(self.data, 8, self.bits) if cut.axis else cut.of(self.data)
        scales_OG, zeros_OG = (None if g is None else g.contiguous() for g in grids)
        assert scales_OG is not None, "there are always scales"
        return IntGroups(data_OB.contiguous(), scales_OG, zeros_OG, self.bits, self.dtype)


def packed_nibbles(codes_OI: Tensor) -> Tensor:
    """Return codes of at most 4 bits, uint8 (O, I), as the `data` of `IntGroups`: (O, I / 2)."""
    return codes_OI[:, ::2] | codes_OI[:, 1::2] << 4


def packed_words(codes_RC: Tensor, bits: int) -> Tensor:
    """Return codes of 2, 4 or 8 bits, uint8 (R, C), as rows of int32 words, the first code in the
    lowest bits: the inverse of `unpacked_words`. A row must fill whole words."""
    assert bits in (2, 4, 8) and codes_RC.shape[1] * bits % 32 == 0, "the scheme has checked them"
    each = 8 // bits
    data_RB = codes_RC[:, ::each].clone()
    for place in range(1, each):
        data_RB |= codes_RC[:, place::each] << place * bits
    return data_RB.flatten().view(torch.int32).view(len(codes_RC), -1)


def unpacked_words(words_RW: Tensor, bits: int) -> Tensor:
    """Return the codes of rows of int32 words, uint8 (R, W · 32 / bits). A row is a stream of bits,
    the lowest first, without gaps: a code of 3 bits may begin in one word and end in the next."""
    data_RB = words_RW.contiguous().view(torch.uint8)
    if bits == 8:
        return data_RB
    if bits in (2, 4):
        parts = [data_RB >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        return torch.stack(parts, -1).flatten(1)
    first = torch.arange(words_RW.shape[1] * 32 // bits, device=words_RW.device) * bits
    last = data_RB.shape[1] - 1
    low, high = data_RB[:, first // 8], data_RB[:, (first // 8 + 1).clamp(max=last)]
    both = low.int() | high.int() << 8
    return (both >> (first % 8).int() & (1 << bits) - 1).to(torch.uint8)


def column_order(g_idx_I: Tensor, group: int) -> Tensor | None:
    """Return the columns sorted by their group, for `Permuted`; None if they already are. Raises
    CheckpointError unless groups have `group` columns, the last one perhaps fewer."""
    sorted_I = torch.arange(len(g_idx_I), device=g_idx_I.device) // group
    if torch.equal(g_idx_I.long(), sorted_I):
        return None
    order_I = g_idx_I.long().argsort(stable=True)
    if not torch.equal(g_idx_I.long()[order_I], sorted_I):
        raise CheckpointError(
            f"g_idx does not assign {group} columns to each group",
            "The checkpoint is damaged, or its group_size is wrong: download it again.",
        )
    return order_I


class Wrapper(Weight):
    """A weight that computes by another one, its `inner`: kernels are chosen by its layout and hold
    it. A subclass changes what goes into the product or what comes out."""

    inner: Weight

    def __init__(self, inner: Weight) -> None:
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout

    def around(self, inner: Weight) -> Wrapper:
        """Return the same wrapper around another weight."""
        raise NotImplementedError

    def cut(self, cut: Cut) -> Weight:
        assert not cut.axis, "the plan does not divide what changes all columns together"
        return self.around(self.inner.cut(cut))

    def joins(self, other: Weight) -> bool:
        """Whether one such wrapper can serve this and `other`, with their inner weights stacked."""
        return False

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        return stacked_inside([self, *others], lambda inner: inner[0].concatenate(inner[1:]))

    def for_matmul(self) -> Weight:
        return self.around(self.inner.for_matmul())


def stacked_inside(
    weights: Sequence[Weight], stack: Callable[[Sequence[Weight]], Weight | None]
) -> Weight | None:
    """Stack the inner weights of wrappers that join, and return one wrapper around the result; None
    if they do not join or do not stack."""
    first, *others = weights
    if not isinstance(first, Wrapper) or not all(map(first.joins, others)):
        return None
    built = stack([weight.inner for weight in weights if isinstance(weight, Wrapper)])
    return None if built is None else first.around(built)


class Permuted(Wrapper):
    """A matrix whose columns are stored in another order, as those of GPTQ's act-order: column i of
    `inner` is column order[i] of this matrix."""

    order: Tensor

    def __init__(self, inner: Weight, order_I: Tensor) -> None:
        """`order_I` is a permutation of the columns, int64."""
        super().__init__(inner)
        self.register_buffer("order", order_I)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.matmul(x_TI.index_select(-1, self.order), bias_O)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.matmul_float32(x_TI.index_select(-1, self.order), bias_O)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.grouped(x_NI.index_select(-1, self.order), starts_E1, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        stored_TI = self.inner.rows(ids_T)
        return torch.empty_like(stored_TI).index_copy_(-1, self.order, stored_TI)

    def around(self, inner: Weight) -> Permuted:
        return Permuted(inner, self.order)

    def joins(self, other: Weight) -> bool:
        return isinstance(other, Permuted) and torch.equal(self.order, other.order)
