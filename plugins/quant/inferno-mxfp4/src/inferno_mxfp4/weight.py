"""Matrices of 4-bit floats in groups of 32 that share a power of two, packed in memory: 4.25 bits a
value.

The format: OCP Microscaling Formats (MX) v1.0. A checkpoint has `blocks` (O, G, 16), each byte two
neighbouring values, the first in the low half, and `scales` (O, G), exponents biased by 127. In
memory each group is ggml's block (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h):
its scale, then 16 bytes with value i in the low half of byte i and value i + 16 in the high one.

This is the reference, in torch's own operators, and bound by the unpacking.
Suffixes: O rows, I columns, G groups of 32 columns, B bytes of a packed row, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import Cut, Weight
from inferno_mxfp4 import LAYOUT

GROUP = 32
BLOCK = 17
"""Bytes of a group."""
CHUNK = 1 << 20
"""Values dequantized at once: 4 MiB of float32, which stay in the CPU cache until they are
multiplied."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class Mxfp4(Weight):
    """A matrix of O rows and I columns: `data` is uint8 (O, I / 32 · 17)."""

    layout = LAYOUT

    def __init__(self, data_OB: Tensor, dtype: torch.dtype) -> None:
        """`dtype` is the compute type: that of `rows`."""
        super().__init__()
        self.dtype = dtype
        self.shape = (data_OB.shape[0], data_OB.shape[1] // BLOCK * GROUP)
        self.data: Tensor
        self.register_buffer("data", data_OB)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        out_features, in_features = self.shape
        y_TO = x_TI.new_empty((*x_TI.shape[:-1], out_features))
        step = max(1, CHUNK // max(1, in_features))
        for start in range(0, out_features, step):
            chunk = slice(start, start + step)
            weight_OI = unpack(self.data[chunk]).to(x_TI.dtype)
            y_TO[..., chunk] = F.linear(x_TI, weight_OI, None if bias_O is None else bias_O[chunk])
        return y_TO

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.matmul(x_TI.float(), None if bias_O is None else bias_O.float())

    def rows(self, ids_T: Tensor) -> Tensor:
        return unpack(self.data[ids_T]).to(self.dtype)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        if not all(isinstance(w, Mxfp4) and w.dtype == self.dtype for w in others):
            return None
        return Mxfp4(
            torch.cat([self.data, *(w.data for w in others if isinstance(w, Mxfp4))]), self.dtype
        )

    def cut(self, cut: Cut) -> Weight:
        data_OB = cut.of(self.data, GROUP, BLOCK) if cut.axis else cut.of(self.data)
        return Mxfp4(data_OB.contiguous(), self.dtype)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Mxfp4:
    """Raises CheckpointError unless there is a scale for every 16 bytes of blocks."""
    blocks_OG16, scales_OG = tensors["blocks"], tensors["scales"]
    if blocks_OG16.ndim != 3 or tuple(blocks_OG16.shape) != (*scales_OG.shape, GROUP // 2):
        raise CheckpointError(
            f"an MXFP4 matrix has blocks {tuple(blocks_OG16.shape)} and scales "
            f"{tuple(scales_OG.shape)}",
            "There must be one scale for every 16 bytes: the checkpoint is damaged.",
        )
    return Mxfp4(repack(blocks_OG16, scales_OG), getattr(torch, dtype))


def repack(blocks_OG16: Tensor, scales_OG: Tensor) -> Tensor:
    """Blocks and scales to (O, B)."""
    values = torch.stack([blocks_OG16 & 15, blocks_OG16 >> 4], -1).flatten(-2)
    packed = values[..., : GROUP // 2] | values[..., GROUP // 2 :] << 4
    return torch.cat([scales_OG[..., None], packed], -1).flatten(1)


def unpack(data_OB: Tensor) -> Tensor:
    """(O, B) bytes to (O, I) values in float32."""
    blocks = data_OB.view(len(data_OB), data_OB.shape[1] // BLOCK, BLOCK)
    nibbles = torch.cat([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1)
    values = torch.tensor(E2M1, device=data_OB.device)[nibbles.int()]
    return torch.ldexp(values, blocks[..., :1].int() - 127).flatten(1)
