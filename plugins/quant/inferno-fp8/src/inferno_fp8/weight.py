"""Weights that stay float8 in memory and are dequantized a few rows at a time.

A value is its float8 (e4m3) times its block's scale; blocks at the edges may be cut off. Reference:
transformers' integrations/finegrained_fp8.py; activations stay in the compute type here, where it
rounds them to float8 too. Suffixes: O rows, I columns, P rows of blocks, Q columns of blocks, T
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import Weight
from inferno_fp8 import LAYOUT

CHUNK = 1 << 20
"""Values dequantized at once, few enough to stay in the CPU cache until they are multiplied."""


class Fp8Blocks(Weight):
    """A matrix of float8 with a float32 scale for each block of rows and columns."""

    layout = LAYOUT

    def __init__(
        self, data_OI: Tensor, scale_PQ: Tensor, block: tuple[int, int], dtype: torch.dtype
    ) -> None:
        """`dtype` is the compute type: that of `rows`. Raises CheckpointError unless there is
        one scale per block."""
        super().__init__()
        wanted = tuple(-(-size // each) for size, each in zip(data_OI.shape, block, strict=True))
        if tuple(scale_PQ.shape) != wanted:
            raise CheckpointError(
                f"a float8 matrix of {tuple(data_OI.shape)} in blocks of {block} has scales "
                f"of {tuple(scale_PQ.shape)}",
                f"It must have {wanted}: check weight_block_size in the config's "
                f"quantization_config.",
            )
        self.shape = (data_OI.shape[0], data_OI.shape[1])
        self.block, self.dtype = block, dtype
        self.data: Tensor
        self.scale: Tensor
        self.register_buffer("data", data_OI)
        self.register_buffer("scale", scale_PQ)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        out_features, in_features = self.shape
        y_TO = x_TI.new_empty((*x_TI.shape[:-1], out_features))
        step = max(1, CHUNK // in_features)
        for start in range(0, out_features, step):
            ids_T = torch.arange(start, min(start + step, out_features), device=self.data.device)
            chunk = slice(start, start + step)
            y_TO[..., chunk] = F.linear(
                x_TI, self.rows(ids_T).to(x_TI.dtype), None if bias_O is None else bias_O[chunk]
            )
        return y_TO

    def rows(self, ids_T: Tensor) -> Tensor:
        # As bytes: torch cannot index rows of float8 on every device.
        data_TI = self.data.view(torch.uint8)[ids_T].view(self.data.dtype).float()
        scale_TI = self.scale[ids_T // self.block[0]].repeat_interleave(self.block[1], dim=1)[
            :, : self.shape[1]
        ]
        return (data_TI * scale_TI).to(self.dtype)

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
        return Fp8Blocks(data_OI, torch.cat([w.scale for w in every]), self.block, self.dtype)


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Fp8Blocks:
    given = stored.quant_config.get("weight_block_size") or (128, 128)
    if (
        not isinstance(given, Sequence)
        or len(given) != 2
        or not all(type(size) is int and size > 0 for size in given)
    ):
        raise CheckpointError(
            f"config.json: weight_block_size is {given!r}", "It must be two sizes: [128, 128]."
        )
    return Fp8Blocks(
        tensors["weight"], tensors["weight_scale_inv"], (given[0], given[1]), getattr(torch, dtype)
    )
