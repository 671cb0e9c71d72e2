"""What matrices with kernels share: shapes of x, and the division of a product among programs.

Suffixes: O rows (output features), I columns (input features), T tokens, E experts, N rows of x
that are sorted by expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
from attrs import frozen
from torch import Tensor

from inferno.nn import Weight
from inferno.nn.weight import linear_float32, with_biases
from inferno_triton import chips, rows

_ADDED = 512
"""Elements of a program that adds splits."""


class KernelWeight(Weight):
    """A matrix, or several of equal shape, stacked, that kernels of this package multiply."""

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self._matmul(x_TI, bias_O, x_TI.dtype)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self._matmul(x_TI, bias_O, torch.float32)

    def _matmul(self, x_TI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
        O, I = self.shape  # noqa: E741
        x = dense_rows(x_TI.reshape(-1, I))
        y_TO = self._by_many(x, bias_O, dtype)
        if y_TO is None:
            y_TO = self._product(x, None, O, len(x), dtype if bias_O is None else torch.float32)
            y_TO = y_TO if bias_O is None else (y_TO + bias_O).to(dtype)
        return y_TO.view(*x_TI.shape[:-1], O)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        experts = len(starts_E1) - 1
        mean = -(-len(x_NI) // experts)  # an expert's rows, if they have equally many
        outputs, dtype = self.shape[0] // experts, x_NI.dtype
        y_NO = self._product(dense_rows(x_NI), starts_E1, outputs, mean, dtype)
        return with_biases(y_NO, starts_E1, bias_O)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"

    def _by_many(self, x: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Multiply many tokens by values in the type of x, into `dtype`: that type or float32.
        None: `_product` does it."""
        return None

    def _product(
        self,
        x: Tensor,
        starts_E1: Tensor | None,
        outputs: int,
        tokens: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return (N, outputs) in `dtype`. `tokens` is their approximate number per matrix."""
        raise NotImplementedError


@frozen(eq=False)
class Launch:
    """How a product is divided among programs."""

    grid: tuple[int, int, int]
    """Blocks of outputs, blocks of rows of x, splits of the columns."""
    experts: int
    """0: one matrix."""
    out: Tensor
    """A result for each split, (splits, N, outputs), float32 if there are several."""
    dtype: torch.dtype
    """Of the result."""

    @classmethod
    def of(
        cls,
        x: Tensor,
        starts_E1: Tensor | None,
        outputs: int,
        dtype: torch.dtype,
        *,
        block: tuple[int, int],
        column_blocks: int,
        programs: int = 2,
    ) -> Launch:
        """Divide a product by blocks of outputs and rows of x, and its columns until every
        processor has `programs`. x has at least one row, and `dtype` is that of the result."""
        N, experts = len(x), 0 if starts_E1 is None else len(starts_E1) - 1
        across, down = triton.cdiv(outputs, block[0]), row_blocks(N, block[1], experts)
        processors = chips.chip_at(x.device).processors
        splits = max(1, min(column_blocks, programs * processors // max(1, across * down)))
        out = x.new_empty(splits, N, outputs, dtype=dtype if splits == 1 else torch.float32)
        return cls((across, down, splits), experts, out, dtype)

    @property
    def splits(self) -> int:
        return self.grid[2]

    @property
    def constants(self) -> dict[str, Any]:
        """The kernels' parameters that describe experts."""
        return {"EXPERTS": self.experts, "EP": triton.next_power_of_2(max(1, self.experts))}

    def result(self) -> Tensor:
        """Return the sum of the splits, (N, outputs)."""
        if self.splits == 1:
            return self.out[0]
        total = self.out.new_empty(self.out.shape[1:], dtype=self.dtype)
        size = total.numel()
        rows.add_parts[(triton.cdiv(size, _ADDED),)](
            self.out, total, size, self.splits, DB=_ADDED, num_warps=2
        )
        return total


def dense_rows(x: Tensor) -> Tensor:
    """Return x with contiguous rows, which may have gaps between them."""
    return x if x.stride(1) == 1 else x.contiguous()


def block_rows(most: int, tokens: int, least: int = 16) -> int:
    """Return the rows of x in a block: at most the tile's, and no more than this many tokens
    need."""
    needed: int = triton.next_power_of_2(tokens)
    return min(most, max(least, needed))


def row_blocks(rows: int, size: int, experts: int) -> int:
    """Return the number of blocks of rows of x. Each expert may have one that is not full."""
    blocks: int = triton.cdiv(rows, size)
    return min(rows, blocks + experts) if experts else blocks


def dense_product(
    x: Tensor,
    bias_O: Tensor | None,
    outputs: int,
    step: int,
    values: Callable[[int, int], Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """Multiply by dense rows of a matrix, at most `step` at once: values(first, count) returns
    them, in the type of x. The result is in that type or in float32."""
    multiply = F.linear if dtype == x.dtype else linear_float32
    if outputs <= step:
        return multiply(x, values(0, outputs), bias_O)
    y_TO = x.new_empty(len(x), outputs, dtype=dtype)
    for at in range(0, outputs, step):
        part = slice(at, min(at + step, outputs))
        weight_OI = values(at, part.stop - at)
        y_TO[:, part] = multiply(x, weight_OI, None if bias_O is None else bias_O[part])
    return y_TO
