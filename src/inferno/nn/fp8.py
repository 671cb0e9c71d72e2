"""Matrices of 8-bit floats, dequantized a few rows at a time: a public layout, with its reference
in torch's own operators.

Suffixes: O rows, I columns, P rows of blocks, Q columns of blocks, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import fp8_layout
from inferno.errors import CheckpointError
from inferno.nn.cut import Cut
from inferno.nn.weight import Weight

CHUNK = 1 << 20
"""Values dequantized at once, few enough to stay in the CPU cache until they are multiplied."""


class Fp8Blocks(Weight):
    """A matrix of float8 (e4m3): a value is its float8 times its block's scale, float32. Blocks at
    the edges may be cut off. A block of one row is as wide as the matrix."""

    data: Tensor
    scales: Tensor

    def __init__(
        self, data_OI: Tensor, scales_PQ: Tensor, block: tuple[int, int], dtype: torch.dtype
    ) -> None:
        """`block` is rows and columns of a block, `dtype` the compute type: that of `rows`. Raises
        CheckpointError unless there is one scale per block."""
        super().__init__()
        wanted = tuple(-(-size // each) for size, each in zip(data_OI.shape, block, strict=True))
        if tuple(scales_PQ.shape) != wanted:
            raise CheckpointError(
                f"a float8 matrix of {tuple(data_OI.shape)} in blocks of {block} has scales "
                f"of {tuple(scales_PQ.shape)}",
                f"It must have {wanted}: check weight_block_size in the config's "
                f"quantization_config.",
            )
        self.shape = (data_OI.shape[0], data_OI.shape[1])
        self.block, self.dtype = block, dtype
        self.layout = fp8_layout(block)
        self.register_buffer("data", data_OI)
        self.register_buffer("scales", scales_PQ)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        out_features, in_features = self.shape
        y_TO = x_TI.new_empty((*x_TI.shape[:-1], out_features))
        step = max(1, CHUNK // max(1, in_features))
        for start in range(0, out_features, step):
            ids_T = torch.arange(start, min(start + step, out_features), device=self.data.device)
            chunk = slice(start, start + step)
            y_TO[..., chunk] = F.linear(
                x_TI, self.rows(ids_T).to(x_TI.dtype), None if bias_O is None else bias_O[chunk]
            )
        return y_TO

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.matmul(x_TI.float(), None if bias_O is None else bias_O.float())

    def rows(self, ids_T: Tensor) -> Tensor:
        # As bytes: torch cannot index rows of float8 on every device.
        data_TI = self.data.view(torch.uint8)[ids_T].view(self.data.dtype).float()
        scales_TQ = self.scales[ids_T // self.block[0]]
        scales_TI = scales_TQ.repeat_interleave(self.block[1], dim=1)[:, : self.shape[1]]
        return (data_TI * scales_TI).to(self.dtype)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        """None if a matrix other than the last ends within a block."""
        alike = [
            w
            for w in others
            if isinstance(w, Fp8Blocks) and (w.block, w.dtype) == (self.block, self.dtype)
        ]
        every = [self, *alike]
        if len(alike) != len(others) or any(w.shape[0] % self.block[0] for w in every[:-1]):
            return None
        data_OI = torch.cat([w.data.view(torch.uint8) for w in every]).view(self.data.dtype)
        return Fp8Blocks(data_OI, torch.cat([w.scales for w in every]), self.block, self.dtype)

    def cut(self, cut: Cut) -> Weight:
        data_OI = cut.of(self.data.view(torch.uint8)).contiguous().view(self.data.dtype)
        if cut.axis and self.block[1] == self.shape[1]:  # a row has one scale
            return Fp8Blocks(data_OI, self.scales, (self.block[0], cut.size), self.dtype)
        scales_PQ = cut.of(self.scales, self.block[cut.axis]).contiguous()
        return Fp8Blocks(data_OI, scales_PQ, self.block, self.dtype)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"
