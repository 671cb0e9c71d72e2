"""Converts AWQ matrices to inferno's public layouts: value = scale · (code - zero).

The format is AutoAWQ's (https://github.com/casper-hansen/AutoAWQ, awq/modules/linear). Suffixes: O
rows, I columns, G groups of columns, W words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.nn import IntGroups, packed_nibbles, unpacked_words
from inferno_awq.packing import Packing

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of the eight rows in a word of `gemm`, the place of its code."""
CHUNK = 1 << 24
"""Values unpacked at once."""


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> IntGroups:
    packing = Packing.of(stored)
    groups = packing.columns // packing.group
    if packing.by_rows:
        data_OB = tensors["qweight"].contiguous().view(torch.uint8)
        zeros_OG = unpacked_words(tensors["qzeros"], 4)[:, :groups]
        scales_OG = tensors["scales"][:, :groups]
    else:
        data_OB = packed_rows(tensors["qweight"])
        zeros_OG = in_order(tensors["qzeros"]).T
        scales_OG = tensors["scales"].T
    return IntGroups.of(
        data_OB,
        scales_OG,
        zeros_OG,
        layout=packing.layout,
        group=packing.group,
        dtype=getattr(torch, dtype),
    )


def packed_rows(qweight_IW: Tensor) -> Tensor:
    """Return the `data` of an `IntGroups` from the codes of `gemm`."""
    step = max(1, CHUNK // (8 * len(qweight_IW)))
    parts = [
        packed_nibbles(in_order(qweight_IW[:, start : start + step]).T.contiguous())
        for start in range(0, qweight_IW.shape[1], step)
    ]
    return torch.cat(parts)


def in_order(words_RW: Tensor) -> Tensor:
    """Return the codes of `gemm`'s words in the order of rows, uint8 (R, O)."""
    codes_RW8 = unpacked_words(words_RW, 4).view(*words_RW.shape, 8)
    return codes_RW8[..., list(PLACES)].flatten(1)
