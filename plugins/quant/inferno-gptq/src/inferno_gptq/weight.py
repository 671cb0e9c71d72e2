"""Converts GPTQ matrices to inferno's public layouts: value = scale · (code - zero).

The format is gptqmodel's (https://github.com/ModelCloud/GPTQModel, nn_modules/qlinear): codes of a
column's bits follow each other from the lowest bit of the first word. Suffixes: O rows, I columns,
G groups of columns, W words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import (
    IntGroups,
    Permuted,
    Weight,
    column_order,
    packed_nibbles,
    unpacked_words,
)
from inferno_gptq.packing import Packing

ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""A word of codes that are 1."""
CHUNK = 1 << 24
"""Values unpacked at once."""


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
    """Raises CheckpointError if `g_idx` or the zero points contradict the config."""
    packing = Packing.of(stored)
    layout = packing.layout
    g_idx_I = tensors.get("g_idx")
    if g_idx_I is not None and not packing.ordered:  # some columns of a matrix have later groups
        g_idx_I = g_idx_I - g_idx_I[0]
    order_I = None if g_idx_I is None else column_order(g_idx_I, packing.group)
    zeros_OG = None if layout.symmetric else zero_points(packing, tensors["qzeros"]).T
    if layout.symmetric and not (zero_points(packing, tensors["qzeros"]) == 128).all():
        raise CheckpointError(
            "zero points differ from 128, but quantization_config says sym",
            "Set sym to false in quantization_config if the checkpoint is not symmetric.",
        )
    weight = IntGroups.of(
        codes(packing, tensors["qweight"], order_I),
        tensors["scales"].T,
        zeros_OG,
        layout=layout,
        group=packing.group,
        dtype=getattr(torch, dtype),
    )
    return weight if order_I is None else Permuted(weight, order_I)


def codes(packing: Packing, qweight_WO: Tensor, order_I: Tensor | None) -> Tensor:
    """Return the `data` of an `IntGroups`, with columns in this order."""
    if packing.bits == 4 and order_I is None:  # only transposed
        return qweight_WO.T.contiguous().view(torch.uint8)
    parts = []
    step = max(1, CHUNK // packing.columns)
    for start in range(0, packing.rows, step):
        codes_OI = unpacked_words(qweight_WO[:, start : start + step].T, packing.bits)
        if order_I is not None:
            codes_OI = codes_OI.index_select(1, order_I)
        parts.append(codes_OI if packing.bits == 8 else packed_nibbles(codes_OI))
    return torch.cat(parts)


def zero_points(packing: Packing, qzeros_GW: Tensor) -> Tensor:
    """Return zero points (G, O), 0 to 2^bits - 1.

    As gptqmodel does, one is added to whole words, where a carry undoes the borrow of its writer.
    Writers disagree about 3 bits: symmetric zero points are known, others are raised one by one.
    """
    bits, half = packing.bits, 1 << packing.bits - 1
    if packing.zero_minus_one and bits in ONES:
        qzeros_GW = qzeros_GW + ONES[bits]
    zeros_GO = unpacked_words(qzeros_GW, bits)[:, : packing.rows]
    if packing.zero_minus_one and bits == 3:
        return torch.full_like(zeros_GO, half) if packing.symmetric else (zeros_GO + 1) & 7
    return zeros_GO
