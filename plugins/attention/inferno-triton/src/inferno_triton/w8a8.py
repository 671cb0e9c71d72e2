"""Matrices of 8-bit integers that are multiplied by rounded activations, as `inferno.nn.W8A8`
defines it, with sums that are exact.

Suffixes: O rows (output features), I columns (input features), T tokens, E experts, N rows of x
that are sorted by expert.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from inferno.contracts import W8A8Layout
from inferno.nn import W8A8
from inferno_triton import chips, int8
from inferno_triton.products import KernelWeight, Launch, block_rows, dense_rows
from inferno_triton.tiles import fp8_of

_WIDTH = 4096
"""Columns that are rounded at once, at most."""
_HALF = 128


class Int8(KernelWeight):
    """A matrix of 8-bit integers, or several of equal shape, stacked."""

    data: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self, data_OI: Tensor, scales_O1: Tensor, zeros_O1: Tensor | None, dtype: torch.dtype
    ) -> None:
        """`data_OI` is int8: codes less 128, as the zero points are. `dtype` is that of `rows`."""
        super().__init__()
        self.shape, self.dtype = (data_OI.shape[0], data_OI.shape[1]), dtype
        self.layout = W8A8Layout(symmetric=zeros_O1 is None).name
        self.register_buffer("data", data_OI)
        self.register_buffer("scales", scales_O1)
        self.register_buffer("zeros", zeros_O1)

    def rows(self, ids_T: Tensor) -> Tensor:
        zeros = 0 if self.zeros is None else self.zeros[ids_T]
        return (self.scales[ids_T] * (self.data[ids_T].float() - zeros)).to(self.dtype)

    def _product(
        self,
        x: Tensor,
        starts_E1: Tensor | None,
        outputs: int,
        tokens: int,
        dtype: torch.dtype,
    ) -> Tensor:
        if len(x) == 0:
            return x.new_empty(0, outputs, dtype=dtype)
        # As large as those of 8-bit floats.
        tile = fp8_of(chips.chip_at(x.device), tokens, rounded=tokens > chips.MAX_TOKENS)
        size, columns = block_rows(tile.tokens, tokens), x.shape[1]
        blocks = triton.cdiv(columns, tile.columns)
        launch = Launch.of(
            x, starts_E1, outputs, dtype, block=(tile.outputs, size), column_blocks=blocks
        )
        q_TI, x_scales_T, sums_T = quantized(x)
        int8.product[launch.grid](
            q_TI,
            x_scales_T,
            sums_T,
            self.data,
            self.scales,
            self.scales if self.zeros is None else self.zeros,
            sums_T if starts_E1 is None else starts_E1,
            launch.out,
            len(x),
            outputs,
            columns,
            launch.splits,
            ZEROS=self.zeros is not None,
            **launch.constants,
            BO=tile.outputs,
            BT=size,
            BC=tile.columns,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return launch.result()


def stack(weight: W8A8) -> Int8:
    """Return the matrix with its kernels."""
    zeros_O1 = None if weight.zeros is None else weight.zeros - _HALF
    data_OI = (weight.data ^ _HALF).view(torch.int8)
    return Int8(data_OI, weight.scales, zeros_O1, weight.dtype)


def quantized(x_TI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens rounded to int8, their scales and the sums of their integers, (T,) each."""
    x_TI = dense_rows(x_TI)
    T, columns = x_TI.shape
    q_TI = torch.empty(T, columns, dtype=torch.int8, device=x_TI.device)
    scales_T = torch.empty(T, dtype=torch.float32, device=x_TI.device)
    sums_T = torch.empty(T, dtype=torch.int32, device=x_TI.device)
    block = min(_WIDTH, triton.next_power_of_2(columns))
    int8.quantize[(T,)](
        x_TI,
        q_TI,
        scales_T,
        sums_T,
        columns,
        x_TI.stride(0),
        BC=block,
        num_warps=max(1, block // 512),
        enable_fp_fusion=False,
    )
    return q_TI, scales_T, sums_T
