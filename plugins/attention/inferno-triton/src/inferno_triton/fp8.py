"""Products with matrices of 8-bit floats. Few tokens are multiplied by the exact values. For more
tokens, chips with FP8 round activations to 8 bits too, as such checkpoints expect.

Suffixes: O rows (output features), I columns (input features), T tokens, E experts, N rows of x
that are sorted by expert.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.nn import Fp8Blocks
from inferno_triton import chips, float8
from inferno_triton.products import KernelWeight, Launch, block_rows, dense_product
from inferno_triton.tiles import fp8_of

GROUP = 128
"""Columns whose activations share a scale, and columns of an iteration. Blocks of the matrix have a
multiple of it."""
_NAN = 0x7F
"""The code of NaN, without its sign."""
_AT_ONCE = 1 << 24
"""Values that are converted at once for many tokens, on chips without FP8."""


class Float8(KernelWeight):
    """A matrix of 8-bit floats, or several of equal shape, stacked."""

    def __init__(self, inner: Fp8Blocks) -> None:
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.inner.rows(ids_T)

    def _by_many(self, x: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if len(x) <= chips.MAX_TOKENS or chips.chip_at(x.device).fp8:
            return None

        def values(first: int, count: int) -> Tensor:
            return self.rows(torch.arange(first, first + count, device=x.device)).to(x.dtype)

        step = max(1, _AT_ONCE // self.shape[1])
        return dense_product(x, bias_O, self.shape[0], step, values, dtype)

    def _product(
        self,
        x: Tensor,
        starts_E1: Tensor | None,
        outputs: int,
        tokens: int,
        dtype: torch.dtype,
    ) -> Tensor:
        (N, columns), chip = x.shape, chips.chip_at(x.device)
        if N == 0:
            return x.new_empty(0, outputs, dtype=dtype)
        data, scales, block = self.inner.data, self.inner.scales, self.inner.block
        rounded = chip.fp8 and tokens > chips.MAX_TOKENS
        kind = "fp8" if rounded else "wide" if chip.fp8 else "fp8_bits"
        tile = fp8_of(chip, tokens, rounded=rounded)
        size = block_rows(tile.tokens, tokens)
        launch = Launch.of(
            x, starts_E1, outputs, dtype, block=(tile.outputs, size), column_blocks=columns // GROUP
        )
        x_scales = scales
        if rounded:
            x, x_scales = quantized(x)
        float8.product[launch.grid](
            x,
            x_scales,
            data.view(torch.uint8) if kind == "fp8_bits" else data,
            scales,
            scales if starts_E1 is None else starts_E1,
            launch.out,
            N,
            outputs,
            columns,
            x.stride(0),
            launch.splits,
            ROWS=block[0],
            COLUMNS=0 if block[0] == 1 else block[1],
            ACROSS=scales.shape[1],
            KIND=kind,
            **launch.constants,
            BO=tile.outputs,
            BT=size,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return launch.result()


def quantized(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows rounded to 8 bits, and their scales, (groups of columns, T)."""
    T, columns = x_TI.shape
    groups = triton.cdiv(columns, GROUP)
    codes_TI = torch.empty(T, columns, dtype=torch.float8_e4m3fn, device=x_TI.device)
    scales_GT = torch.empty(groups, T, dtype=torch.float32, device=x_TI.device)
    float8.quantize[(triton.cdiv(T, 16), groups)](
        x_TI, codes_TI, scales_GT, T, columns, x_TI.stride(0), BT=16
    )
    return codes_TI, scales_GT


def stack(weight: Fp8Blocks) -> Float8:
    """Return the matrix with its kernels. Raises CheckpointError if a value is NaN."""
    if (weight.data.view(torch.uint8) & _NAN == _NAN).any():
        raise CheckpointError(
            "a float8 matrix contains NaN",
            "The checkpoint is damaged: download it again.",
        )
    return Float8(weight)
