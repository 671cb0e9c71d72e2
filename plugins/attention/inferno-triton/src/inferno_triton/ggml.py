"""Codes and scales of matrices in ggml's blocks, as `planes` packs them.

Layouts: ggml's block structures (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h).
Suffixes: O rows, I columns, N blocks, B bytes of a block, G groups of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen
from torch import Tensor

from inferno_triton.planes import Form, Parts


@frozen
class Ggml:
    """How to read a block layout."""

    values: int
    """Columns of a block."""
    nbytes: int
    form: Form
    read: Callable[[Tensor], tuple[Tensor, ...]]
    """(N, B) bytes -> codes (N, values), scales (N, groups), and, if the form has them, minima
    (N, groups), steps (N), steps of the minima (N)."""


def parts(layout: str, data_OB: Tensor) -> Parts:
    """Return the codes and scales of rows of blocks."""
    kind, rows = FORMS[layout], len(data_OB)
    tensors = kind.read(data_OB.reshape(-1, kind.nbytes))
    codes_OI, scales_OG, *rest = (each.reshape(rows, -1) for each in tensors)
    mins_OG = rest.pop(0) if kind.form.mins else None
    steps, least = (*rest, None, None)[:2]
    return Parts(codes_OI, scales_OG, mins_OG, steps, least)


def _half(data_NB: Tensor, at: int) -> Tensor:
    """Return the float16 at that byte, (N, 1)."""
    return data_NB[:, at : at + 2].contiguous().view(torch.float16)


def _fields(data: Tensor, bits: int) -> Tensor:
    """Return the fields of each byte, lowest bits first, in a new second-to-last dimension."""
    shifts = range(0, 8, bits)
    return torch.stack([data >> shift & (1 << bits) - 1 for shift in shifts], -2)


def _nibbles(data_NB: Tensor) -> Tensor:
    return _fields(data_NB, 4).flatten(1)


def _bits(data_NB: Tensor) -> Tensor:
    return _fields(data_NB[..., None], 1).flatten(1)


def _q4_0(data: Tensor) -> tuple[Tensor, ...]:
    return _nibbles(data[:, 2:]), _half(data, 0)


def _q4_1(data: Tensor) -> tuple[Tensor, ...]:
    return _nibbles(data[:, 4:]), _half(data, 0), -_half(data, 2)


def _q5_0(data: Tensor) -> tuple[Tensor, ...]:
    return _nibbles(data[:, 6:]) | _bits(data[:, 2:6]) << 4, _half(data, 0)


def _q5_1(data: Tensor) -> tuple[Tensor, ...]:
    return _nibbles(data[:, 8:]) | _bits(data[:, 4:8]) << 4, _half(data, 0), -_half(data, 2)


def _q8_0(data: Tensor) -> tuple[Tensor, ...]:
    return data[:, 2:] ^ 128, _half(data, 0)


def _q2_k(data: Tensor) -> tuple[Tensor, ...]:
    codes = _fields(data[:, 16:80].reshape(-1, 2, 32), 2)
    return codes, data[:, :16] & 15, data[:, :16] >> 4, _half(data, 80), _half(data, 82)


def _q3_k(data: Tensor) -> tuple[Tensor, ...]:
    packed = data[:, 96:108]
    scales = _fields(packed[:, :8], 4).flatten(1) | _fields(packed[:, 8:], 2).flatten(1) << 4
    low = _fields(data[:, 32:96].reshape(-1, 2, 32), 2).flatten(1)
    codes = low | _fields(data[:, :32], 1).flatten(1) << 2
    return codes, scales.to(torch.int8) - 32, _half(data, 108)


def _six_bits(data: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and 8 minima of q4_k and q5_k."""
    low, high, rest = data[:, :4], data[:, 4:8], data[:, 8:]
    return (
        torch.cat([low & 63, (rest & 15) | (low >> 2 & 48)], -1),
        torch.cat([high & 63, (rest >> 4) | (high >> 2 & 48)], -1),
    )


def _q4_k(data: Tensor) -> tuple[Tensor, ...]:
    codes = _fields(data[:, 16:].reshape(-1, 4, 32), 4)
    return codes, *_six_bits(data[:, 4:16]), _half(data, 0), _half(data, 2)


def _q5_k(data: Tensor) -> tuple[Tensor, ...]:
    low = _fields(data[:, 48:].reshape(-1, 4, 32), 4).flatten(1)
    codes = low | _fields(data[:, 16:48], 1).flatten(1) << 4
    return codes, *_six_bits(data[:, 4:16]), _half(data, 0), _half(data, 2)


def _q6_k(data: Tensor) -> tuple[Tensor, ...]:
    low = _fields(data[:, :128].reshape(-1, 2, 64), 4).flatten(1)
    high = _fields(data[:, 128:192].reshape(-1, 2, 32), 2).flatten(1)
    return low | high << 4, data[:, 192:208], _half(data, 208)


def _mxfp4(data: Tensor) -> tuple[Tensor, ...]:
    return _nibbles(data[:, 1:]), data[:, :1]


CURVE = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)
"""The values of iq4_nl's codes."""

FORMS: Mapping[str, Ggml] = {
    "q4_0": Ggml(32, 18, Form(4, group=32, offset=8), _q4_0),
    "q4_1": Ggml(32, 20, Form(4, group=32, mins="minima"), _q4_1),
    "q5_0": Ggml(32, 22, Form(4, 1, group=32, offset=16), _q5_0),
    "q5_1": Ggml(32, 24, Form(4, 1, group=32, mins="minima"), _q5_1),
    "q8_0": Ggml(32, 34, Form(8, group=32, offset=128), _q8_0),
    "q2_k": Ggml(256, 84, Form(2, group=16, mins="minima", kind="byte"), _q2_k),
    "q3_k": Ggml(256, 110, Form(2, 1, group=16, offset=4, kind="byte"), _q3_k),
    "q4_k": Ggml(256, 144, Form(4, group=32, mins="minima", kind="byte"), _q4_k),
    "q5_k": Ggml(256, 176, Form(4, 1, group=32, mins="minima", kind="byte"), _q5_k),
    "q6_k": Ggml(256, 210, Form(4, 2, group=16, offset=32, kind="byte"), _q6_k),
    "iq4_nl": Ggml(32, 18, Form(4, group=32, table="values"), _q4_0),
    "mxfp4": Ggml(32, 17, Form(4, group=32, kind="exponent", table="e2m1"), _mxfp4),
}
