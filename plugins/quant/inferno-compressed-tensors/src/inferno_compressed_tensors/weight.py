"""Converts matrices of compressed-tensors to inferno's public layouts.

The format is that of https://github.com/vllm-project/compressed-tensors (compressors/): value =
scale · (q - zero), with signed q and zero. Packed, both are stored as codes, raised by half of
their range, and follow each other from the lowest bit of a word. Suffixes: O rows, I columns, G
groups of columns, W words of 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix, W8A8Layout
from inferno.errors import CheckpointError
from inferno.nn import (
    W8A8,
    Fp8Blocks,
    IntGroups,
    Permuted,
    Weight,
    column_order,
    packed_nibbles,
    unpacked_words,
)
from inferno_compressed_tensors.packing import SCALE, ZERO_POINT, Packing
from inferno_compressed_tensors.rounding import RoundedInputs, Rounding


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
    """Raises CheckpointError if the values contradict the headers or the config."""
    packing = Packing.of(stored)
    layout, rows, to = packing.layout, packing.rows, getattr(torch, dtype)
    scales = tensors["weight_scale"]
    if isinstance(layout, tuple):
        scales = scales.float()
        if layout[0] == 1:
            scales = scales.reshape(-1, 1).expand(rows, 1)
        return Fp8Blocks(tensors["weight"].contiguous(), scales.contiguous(), layout, to)
    # A rank has some rows or columns of what is stored.
    whole = tensors["weight_shape"].flatten().tolist() if packing.packed else [rows, 0]
    if len(whole) != 2 or whole[0] < rows or (packing.packed and whole[1] < packing.columns):
        raise CheckpointError(
            f"weight_shape is {tensors['weight_shape'].tolist()}, but {[rows, packing.columns]} "
            f"values are stored",
            "Columns must fill whole words: quantize the model in another format.",
        )
    zeros_OG = None if layout.symmetric else zero_points(packing, tensors.get("weight_zero_point"))
    if isinstance(layout, W8A8Layout):
        rounded = W8A8(
            data(packing, tensors, None).contiguous(),
            scales.float().reshape(-1, 1).expand(rows, 1).contiguous(),
            None if zeros_OG is None else zeros_OG.float().expand(rows, 1).contiguous(),
            to,
        )
        rounding = rounding_of(packing, tensors)
        return rounded if rounding is None else RoundedInputs.of(rounded, rounding)
    order_I = column_order(tensors["weight_g_idx"], packing.group) if packing.ordered else None
    groups = -(-packing.columns // packing.group)
    weight = IntGroups.of(
        data(packing, tensors, order_I),
        scales.reshape(-1, groups).expand(rows, groups),
        None if zeros_OG is None else zeros_OG.expand(rows, groups),
        layout=layout,
        group=packing.group,
        dtype=to,
    )
    return weight if order_I is None else Permuted(weight, order_I)


def rounding_of(packing: Packing, tensors: Mapping[str, Tensor]) -> Rounding | None:
    """Return how activations are rounded; None if it is as the layout says. Raises
    CheckpointError."""
    if packing.activations == "token":
        return None
    if packing.activations != "tensor":
        return Rounding(None)
    scale, zero = float(tensors[SCALE]), float(tensors.get(ZERO_POINT, 0))
    if not (0 < scale < math.inf and -128 <= zero <= 127 and zero == round(zero)):
        raise CheckpointError(
            f"activations have the scale {scale} and the zero point {zero}",
            "The checkpoint is damaged: download or quantize it again.",
        )
    return Rounding(scale, zero)


def data(packing: Packing, tensors: Mapping[str, Tensor], order_I: Tensor | None) -> Tensor:
    """Return the `data` of an `IntGroups`, with columns in this order."""
    if not packing.packed:
        codes_OI = tensors["weight"].contiguous().view(torch.uint8) ^ 128
    elif order_I is None:  # bytes of codes, of 4 bits or 8, the earlier column in the low half
        return tensors["weight_packed"].contiguous().view(torch.uint8)
    else:
        codes_OI = unpacked_words(tensors["weight_packed"], packing.bits)
    if order_I is not None:
        codes_OI = codes_OI.index_select(1, order_I)
    return codes_OI if packing.bits == 8 else packed_nibbles(codes_OI)


def zero_points(packing: Packing, stored: Tensor | None) -> Tensor:
    """Return zero points as codes, (O, G) or (1, 1)."""
    if packing.symmetric or stored is None:
        return torch.full((1, 1), 1 << packing.bits - 1)
    if packing.packed:  # along the rows
        words_GW = stored.T.clone(memory_format=torch.contiguous_format)
        return unpacked_words(words_GW, packing.bits)[:, : packing.rows].T
    groups = -(-packing.columns // packing.group)
    return stored.reshape(-1, groups).int() + 128
