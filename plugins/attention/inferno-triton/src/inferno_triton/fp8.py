"""Products with matrices of 8-bit floats. Few tokens are multiplied by the exact values. For more
tokens, chips with FP8 round activations to 8 bits too, as such checkpoints expect.

Suffixes: O rows (output features), I columns (input features), T tokens, E experts, N rows of x
that are sorted by expert.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.nn import Fp8Blocks, Weight
from inferno.nn.weight import with_biases
from inferno_triton import chips, float8
from inferno_triton.tiles import fp8_of

GROUP = 128
"""Columns whose activations share a scale, and columns of an iteration. Blocks of the matrix have a
multiple of it."""
_NAN = 0x7F
"""The code of NaN, without its sign."""
_AT_ONCE = 1 << 24
"""Values that are converted at once for many tokens, on chips without FP8."""


class Float8(Weight):
    """A matrix of 8-bit floats, or several of equal shape, stacked."""

    def __init__(self, inner: Fp8Blocks) -> None:
        super().__init__()
        self.inner, self.shape, self.layout = inner, inner.shape, inner.layout

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        O, I = self.shape  # noqa: E741
        x = x_TI.reshape(-1, I)
        if len(x) > chips.MAX_TOKENS and not chips.chip_at(x.device).fp8:
            y_TO = self._converted(x, bias_O)
        else:
            y_TO = self._product(x, None, O, len(x))
            y_TO = (y_TO if bias_O is None else y_TO + bias_O).to(x.dtype)
        return y_TO.view(*x_TI.shape[:-1], O)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        experts = len(starts_E1) - 1
        mean = -(-len(x_NI) // experts)  # an expert's rows, if they have equally many
        y_NO = self._product(x_NI, starts_E1, self.shape[0] // experts, mean)
        return with_biases(y_NO.to(x_NI.dtype), starts_E1, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.inner.rows(ids_T)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"

    def _product(self, x: Tensor, starts_E1: Tensor | None, outputs: int, tokens: int) -> Tensor:
        """Return (N, outputs), float32 if the columns are split. `tokens` is their approximate
        number per matrix."""
        x = x if x.stride(1) == 1 else x.contiguous()
        (N, columns), chip, dtype = x.shape, chips.chip_at(x.device), x.dtype
        if N == 0:
            return x.new_empty(0, outputs)
        data, scales, block = self.inner.data, self.inner.scales, self.inner.block
        rounded = chip.fp8 and tokens > chips.MAX_TOKENS
        kind = "fp8" if rounded else "wide" if chip.fp8 else "fp8_bits"
        tile = fp8_of(chip, tokens, rounded=rounded)
        experts = 0 if starts_E1 is None else len(starts_E1) - 1
        size = min(tile.tokens, max(16, triton.next_power_of_2(tokens)))
        runs = triton.cdiv(N, size)
        if experts:  # each may have a block that is not full
            runs = min(N, runs + experts)
        programs = triton.cdiv(outputs, tile.outputs) * runs
        splits = max(1, min(columns // GROUP, 2 * chip.processors // max(1, programs)))
        out = x.new_empty(splits, N, outputs, dtype=dtype if splits == 1 else torch.float32)
        x_scales = scales
        if rounded:
            x, x_scales = quantized(x)
        float8.product[(triton.cdiv(outputs, tile.outputs), runs, splits)](
            x,
            x_scales,
            data.view(torch.uint8) if kind == "fp8_bits" else data,
            scales,
            scales if starts_E1 is None else starts_E1,
            out,
            N,
            outputs,
            columns,
            x.stride(0),
            splits,
            ROWS=block[0],
            COLUMNS=0 if block[0] == 1 else block[1],
            ACROSS=scales.shape[1],
            KIND=kind,
            EXPERTS=experts,
            EP=triton.next_power_of_2(max(1, experts)),
            BO=tile.outputs,
            BT=size,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out[0] if splits == 1 else out.sum(0)

    def _converted(self, x: Tensor, bias_O: Tensor | None) -> Tensor:
        """Multiply by the matrix's values in the type of x."""
        O, I = self.shape  # noqa: E741
        y_TO, step = x.new_empty(len(x), O), max(1, _AT_ONCE // I)
        for at in range(0, O, step):
            part = slice(at, min(at + step, O))
            weight_OI = self.rows(torch.arange(at, part.stop, device=x.device)).to(x.dtype)
            y_TO[:, part] = F.linear(x, weight_OI, None if bias_O is None else bias_O[part])
        return y_TO


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
