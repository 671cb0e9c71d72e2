"""Weights that stay in ggml's blocks: packed in memory, dequantized a few rows at a time.

This is the reference, in torch operators: portable, equal bit by bit to gguf-py's `dequantize` in
float32, and bound by dequantization. Kernels that compute on the blocks read `Blocks.layout` and
`Blocks.data`.

Layouts: ggml's block structures (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h).
Suffixes: O rows, I columns, B bytes of a packed row, N blocks, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import Cut, Weight
from inferno_gguf.ggml import BY_NAME
from inferno_gguf.searches import CURVE

CHUNK = 1 << 20
"""Values dequantized at once: 4 MiB of float32, which stay in the CPU cache until they are
multiplied."""


class Blocks(Weight):
    """A matrix of O rows and I columns in one of ggml's block layouts.

    `layout` is the type's name ("q4_k"), `data` its bytes as stored: uint8 (O, B), each row
    I / values consecutive blocks of `ggml.BY_NAME[layout].nbytes` bytes.
    """

    def __init__(self, layout: str, data_OB: Tensor, dtype: torch.dtype) -> None:
        """`dtype` is the compute type: that of `rows`. Raises CheckpointError unless the rows are
        whole blocks."""
        super().__init__()
        self.layout, self.dtype = layout, dtype
        self.shape = shape_of(layout, data_OB)
        self.data: Tensor
        self.register_buffer("data", data_OB)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        out_features, in_features = self.shape
        y_TO = x_TI.new_empty((*x_TI.shape[:-1], out_features))
        step = max(1, CHUNK // max(1, in_features))
        for start in range(0, out_features, step):
            chunk = slice(start, start + step)
            weight_OI = unpack(self.layout, self.data[chunk]).to(x_TI.dtype)
            y_TO[..., chunk] = F.linear(x_TI, weight_OI, None if bias_O is None else bias_O[chunk])
        return y_TO

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.matmul(x_TI.float(), None if bias_O is None else bias_O.float())

    def rows(self, ids_T: Tensor) -> Tensor:
        return unpack(self.layout, self.data[ids_T]).to(self.dtype)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        if not all(
            isinstance(w, Blocks) and (w.layout, w.dtype) == (self.layout, self.dtype)
            for w in others
        ):
            return None
        stacked = torch.cat([self.data, *(w.data for w in others if isinstance(w, Blocks))])
        return Blocks(self.layout, stacked, self.dtype)

    def cut(self, cut: Cut) -> Weight:
        kind = BY_NAME[self.layout]
        data_OB = cut.of(self.data, kind.values, kind.nbytes) if cut.axis else cut.of(self.data)
        return Blocks(self.layout, data_OB.contiguous(), self.dtype)

    def extra_repr(self) -> str:
        return f"{self.layout}, {self.shape}"


def shape_of(layout: str, data_OB: Tensor) -> tuple[int, int]:
    """Return rows and columns of a packed matrix. Raises CheckpointError unless rows are whole
    blocks."""
    kind = BY_NAME[layout]
    if (
        data_OB.dtype != torch.uint8
        or data_OB.ndim != 2
        or not data_OB.shape[1]
        or data_OB.shape[1] % kind.nbytes
    ):
        raise CheckpointError(
            f"a matrix in {layout} is {data_OB.dtype} {tuple(data_OB.shape)}",
            f"It must be rows of whole blocks of {kind.nbytes} bytes.",
        )
    return data_OB.shape[0], data_OB.shape[1] // kind.nbytes * kind.values


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Blocks:
    [(layout, data_OB)] = tensors.items()
    return Blocks(layout, data_OB, getattr(torch, dtype))


def unpack(layout: str, data_OB: Tensor) -> Tensor:
    """Dequantize (O, B) bytes to (O, I) values in float32."""
    kind = BY_NAME[layout]
    columns = data_OB.shape[1] // kind.nbytes * kind.values
    if not len(data_OB):
        return data_OB.new_empty(0, columns, dtype=torch.float32)
    return UNPACK[layout](data_OB.reshape(-1, kind.nbytes)).view(-1, columns)


# Each of these takes blocks (N, bytes) to values (N, values per block). The order of the operations
# is gguf-py's: float32 rounds the same.


def half(blocks: Tensor, offset: int) -> Tensor:
    """Return the float16 at that byte, (N, 1), in float32."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()


def _fields(packed: Tensor, bits: int) -> Tensor:
    """Each byte's fields of `bits` bits, lowest first, as a new second last dimension: (..., W) to
    (..., 8 / bits, W)."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-2) >> shifts[:, None]) & ((1 << bits) - 1)


def _bits(packed: Tensor) -> Tensor:
    """The bits of (N, W) bytes in order, (N, 8 W)."""
    return _fields(packed[..., None], 1).flatten(1)


def _nibbles(packed: Tensor) -> Tensor:
    """(N, 16) bytes to (N, 32): all low halves, then all high ones."""
    return _fields(packed, 4).flatten(1)


def _q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    quants = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return half(blocks, 0) * (quants.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    quants = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return half(blocks, 0) * quants.float() + half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * half(blocks, 0)


def _q2_k(blocks: Tensor) -> Tensor:
    scales_N16, quants = blocks[:, :16], blocks[:, 16:80]
    scale = (half(blocks, 80) * (scales_N16 & 15).float())[..., None]
    least = (half(blocks, 82) * (scales_N16 >> 4).float())[..., None]
    values = _fields(quants.reshape(-1, 2, 32), 2).reshape(-1, 16, 16).float()
    return (scale * values - least).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    high, quants, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    scales_N16 = _fields(packed[:, :8], 4).flatten(1) | _fields(packed[:, 8:], 2).flatten(1) << 4
    scale = (half(blocks, 108) * (scales_N16.float() - 32))[..., None]
    low = _fields(quants.reshape(-1, 2, 32), 2).reshape(-1, 16, 16).float()
    absent = (
        1 - _fields(high, 1).reshape(-1, 16, 16).float()
    )  # a set bit means that nothing is subtracted
    return (scale * (low - 4 * absent)).flatten(1)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima of q4_k and q5_k, each (N, 8), from 12 bytes."""
    scales, least, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (
        torch.cat([scales & 63, (rest & 15) | (scales >> 2 & 48)], -1),
        torch.cat([least & 63, (rest >> 4) | (least >> 2 & 48)], -1),
    )


def _scaled(blocks: Tensor, quants_N8W: Tensor) -> Tensor:
    """q4_k and q5_k: eight groups, each with a scale and a minimum."""
    scales, least = _six_bits(blocks[:, 4:16])
    scale = (half(blocks, 0) * scales.float())[..., None]
    return (scale * quants_N8W.float() - (half(blocks, 2) * least.float())[..., None]).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    return _scaled(blocks, _fields(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32))


def _q5_k(blocks: Tensor) -> Tensor:
    low = _fields(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _scaled(blocks, low | _fields(blocks[:, 16:48], 1) << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    low = _fields(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    scale = (half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float())[..., None]
    return (scale * ((low | high << 4).float() - 32).reshape(-1, 16, 16)).flatten(1)


@cache
def _curve(device: torch.device) -> Tensor:
    """The values of iq4_nl's codes, made once: a captured step takes no values from Python."""
    return torch.tensor(CURVE, dtype=torch.float32, device=device)


def _iq4_nl(blocks: Tensor) -> Tensor:
    curve = _curve(blocks.device)
    return half(blocks, 0) * curve[_nibbles(blocks[:, 2:]).int()]


_E2M1 = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
"""Twice the values of 4-bit floats; block scales are halved to match."""


def _mxfp4(blocks: Tensor) -> Tensor:
    exponent = blocks[:, :1].int()
    half = torch.where(exponent < 2, 0x0020_0000 << exponent.clamp(max=1), exponent - 1 << 23)
    return (
        half.view(torch.float32)
        * torch.tensor(_E2M1, device=blocks.device)[_nibbles(blocks[:, 1:]).int()]
    )


UNPACK: Mapping[str, Callable[[Tensor], Tensor]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
    "iq4_nl": _iq4_nl,
}
