"""Packed matrices in planes of bits, the one form that `packed` multiplies.

Suffixes: O rows, I columns, G groups of columns, B blocks of 256 columns, W words, E experts, T
tokens, N rows of x that are sorted by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

BLOCK = 256
"""Columns of a block. The last block of a row is padded with zeros."""
PIECE = 32
PIECES = BLOCK // PIECE
_AT_ONCE = 1 << 22
"""Codes that are packed at once: their temporary words take eight times the memory."""
_INTEGERS: Mapping[int, torch.dtype] = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
_ELEMENTS: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}
"""Bits of a code -> the type that holds eight of them."""


@frozen
class Form:
    """How values are computed from planes: see `packed`."""

    low: Literal[2, 4, 8]
    """Bits of a code in the first plane."""
    high: Literal[0, 1, 2] = 0
    """Bits above these, in a second plane."""
    group: Literal[16, 32, 64] = 32
    """Columns that share a scale."""
    offset: int = 0
    """Subtracted from every code."""
    mins: Literal["", "zeros", "minima"] = ""
    """A second subtrahend: "zeros" of the code, "minima" of the product with the scale."""
    kind: Literal["single", "half", "byte", "exponent"] = "half"
    """What the words of scales and of `mins` contain."""
    table: Literal["", "e2m1", "values"] = ""
    """What codes mean, if not themselves: MXFP4's floats, or those of a table."""


@frozen(eq=False)
class Parts:
    """Some rows of a matrix, before packing. Scales and minima are float16 or float32, or bytes
    with a float16 step for each block."""

    codes_OI: Tensor
    scales_OG: Tensor
    mins_OG: Tensor | None = None
    steps_OB: Tensor | None = None
    least_OB: Tensor | None = None


@frozen(eq=False)
class Planes:
    """The tensors of a packed matrix. Those that its form lacks are None."""

    form: Form
    shape: tuple[int, int]
    low: Tensor
    """(O, 32 B) of eight codes each."""
    high: Tensor | None
    scales: Tensor
    """(W, O), int64."""
    mins: Tensor | None
    steps: Tensor | None
    """(B, O), float16."""
    least: Tensor | None
    table: Tensor | None = None
    """(16), float32."""

    @classmethod
    def of(
        cls,
        form: Form,
        shape: tuple[int, int],
        parts: Callable[[slice], Parts],
        table: Tensor | None = None,
    ) -> Planes:
        """Pack a matrix. `parts` returns a slice of its rows."""
        step = max(1, _AT_ONCE // max(1, shape[1]))
        packed = [
            _packed(form, parts(slice(at, at + step))) for at in range(0, max(1, shape[0]), step)
        ]
        low, high, *grids = (
            None if pieces[0] is None else torch.cat(pieces) for pieces in zip(*packed, strict=True)
        )
        scales, mins, steps, least = (
            None if each is None else each.T.contiguous() for each in grids
        )
        assert low is not None and scales is not None, "every form has them"
        return cls(form, shape, low, high, scales, mins, steps, least, table)

    @property
    def blocks(self) -> int:
        return self.low.shape[1] // PIECE

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that exist, by name."""
        names = ("low", "high", "scales", "mins", "steps", "least", "table")
        every = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in every.items() if tensor is not None}


def _packed(form: Form, rows: Parts) -> tuple[Tensor | None, ...]:
    """Return the rows' low and high planes, and their scales, minima and steps, (O, ...)."""
    codes_OI = F.pad(rows.codes_OI, (0, -rows.codes_OI.shape[1] % BLOCK))
    blocks = codes_OI.shape[1] // BLOCK
    return (
        _plane(codes_OI, 0, form.low),
        _plane(codes_OI, form.low, form.high) if form.high else None,
        _words(form, rows.scales_OG, blocks),
        None if rows.mins_OG is None else _words(form, rows.mins_OG, blocks),
        rows.steps_OB,
        rows.least_OB,
    )


def _plane(codes_OI: Tensor, first: int, bits: int) -> Tensor:
    """Return `bits` bits of each code, from bit `first` on, in elements of eight codes."""
    codes_OB8E = (codes_OI >> first & (1 << bits) - 1).view(len(codes_OI), -1, PIECES, PIECE)
    elements_OBE = codes_OB8E.new_zeros(
        len(codes_OI), codes_OB8E.shape[1], PIECE, dtype=torch.int64
    )
    for piece in range(PIECES):
        elements_OBE |= codes_OB8E[:, :, piece].long() << bits * piece
    return elements_OBE.flatten(1).to(_ELEMENTS[bits])


def _words(form: Form, numbers_OG: Tensor, blocks: int) -> Tensor:
    """Return numbers in words of 64 bits, (O, W)."""
    bits = 8 * numbers_OG.itemsize
    raw_OG = numbers_OG.contiguous().view(_INTEGERS[bits])
    raw_OG = F.pad(raw_OG, (0, blocks * BLOCK // form.group - raw_OG.shape[1])).long()
    raw_OWn = (raw_OG & (1 << bits) - 1).view(len(raw_OG), -1, 64 // bits)
    words_OW = torch.zeros_like(raw_OWn[..., 0])
    for place in range(raw_OWn.shape[-1]):
        words_OW |= raw_OWn[..., place] << bits * place
    return words_OW
