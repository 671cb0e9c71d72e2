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
from inferno.nn import W8A8, Weight
from inferno.nn.weight import with_biases
from inferno_triton import chips, int8
from inferno_triton.tiles import fp8_of

_WIDTH = 4096
"""Columns that are rounded at once, at most."""
_HALF = 128


class Int8(Weight):
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

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        O, I = self.shape  # noqa: E741
        x = x_TI.reshape(-1, I)
        y_TO = self._product(x, None, O, len(x))
        y_TO = (y_TO if bias_O is None else y_TO + bias_O).to(x.dtype)
        return y_TO.view(*x_TI.shape[:-1], O)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        experts = len(starts_E1) - 1
        mean = -(-len(x_NI) // experts)  # an expert's rows, if they have equally many
        y_NO = self._product(x_NI, starts_E1, self.shape[0] // experts, mean)
        return with_biases(y_NO.to(x_NI.dtype), starts_E1, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        zeros = 0 if self.zeros is None else self.zeros[ids_T]
        return (self.scales[ids_T] * (self.data[ids_T].float() - zeros)).to(self.dtype)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"

    def _product(self, x: Tensor, starts_E1: Tensor | None, outputs: int, tokens: int) -> Tensor:
        """Return (N, outputs), float32 if the columns are split. `tokens`: of a matrix, about."""
        (N, columns), chip, dtype = x.shape, chips.chip_at(x.device), x.dtype
        if N == 0:
            return x.new_empty(0, outputs)
        q_TI, x_scales_T, sums_T = quantized(x)
        # As large as those of 8-bit floats.
        tile = fp8_of(chip, tokens, rounded=tokens > chips.MAX_TOKENS)
        experts = 0 if starts_E1 is None else len(starts_E1) - 1
        size = min(tile.tokens, max(16, triton.next_power_of_2(tokens)))
        runs = triton.cdiv(N, size)
        if experts:  # each may have a block that is not full
            runs = min(N, runs + experts)
        programs = triton.cdiv(outputs, tile.outputs) * runs
        blocks = triton.cdiv(columns, tile.columns)
        splits = max(1, min(blocks, 2 * chip.processors // max(1, programs)))
        out = x.new_empty(splits, N, outputs, dtype=dtype if splits == 1 else torch.float32)
        int8.product[(triton.cdiv(outputs, tile.outputs), runs, splits)](
            q_TI,
            x_scales_T,
            sums_T,
            self.data,
            self.scales,
            self.scales if self.zeros is None else self.zeros,
            sums_T if starts_E1 is None else starts_E1,
            out,
            N,
            outputs,
            columns,
            splits,
            ZEROS=self.zeros is not None,
            EXPERTS=experts,
            EP=triton.next_power_of_2(max(1, experts)),
            BO=tile.outputs,
            BT=size,
            BC=tile.columns,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out[0] if splits == 1 else out.sum(0)


def stack(weight: W8A8) -> Int8:
    """Return the matrix with its kernels."""
    zeros_O1 = None if weight.zeros is None else weight.zeros - _HALF
    data_OI = (weight.data ^ _HALF).view(torch.int8)
    return Int8(data_OI, weight.scales, zeros_O1, weight.dtype)


def quantized(x_TI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens rounded to int8, their scales and the sums of their integers, (T,) each."""
    x_TI = x_TI if x_TI.stride(1) == 1 else x_TI.contiguous()
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
