"""Converts HQQ matrices to inferno's public layouts: value = scale · (code - zero).

The format is that of https://github.com/dropbox/hqq (hqq/core/quantize.py, HQQLinear). Suffixes: R
rows and C columns of codes, O rows, I columns, G groups of columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import Dense, IntGroups, Weight, packed_nibbles
from inferno_hqq.packing import Packing


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
    """Raises CheckpointError if the description contradicts the headers."""
    packing, to = Packing.of(stored), getattr(torch, dtype)
    info = {part: tensors[part].reshape(-1).tolist() for part in ("nbits", "axis", "shape")}
    values = packing.groups * packing.group
    if info["nbits"] != [packing.bits] or info["axis"] != [packing.axis]:
        raise _contradiction(f"nbits {info['nbits']} or axis {info['axis']} differ from the config")
    shape = info["shape"]
    if len(shape) != 2 or min(shape) < 1 or shape[0] * shape[1] != values:
        raise _contradiction(f"shape is {shape}, but {values} values are stored")
    codes_RC = unpacked(tensors["W_q"], packing)
    if packing.layout is None:
        values_RC = (codes_RC.float() - tensors["zero"].float()) * tensors["scale"].float()
        return Dense(values_RC.reshape(shape).to(to))
    if shape[1] % packing.group:
        raise _contradiction(f"groups of {packing.group} values do not fit rows of {shape[1]}")
    codes_OI, zeros_OG = codes_RC.reshape(shape), tensors["zero"].reshape(shape[0], -1)
    if not zeros_OG.half().isfinite().all():
        raise _contradiction("a zero point is infinite, not a number, or too large for float16")
    return IntGroups.of(
        codes_OI if packing.bits == 8 else packed_nibbles(codes_OI),
        tensors["scale"].reshape(shape[0], -1),
        zeros_OG,
        layout=packing.layout,
        group=packing.group,
        dtype=to,
    )


def unpacked(stored: Tensor, packing: Packing) -> Tensor:
    """Return codes, uint8 (R, C)."""
    bits = packing.bits
    shifts = range(27, -1, -3) if bits == 3 else range(8 - bits, -1, -bits)
    count = packing.groups if packing.axis else packing.group
    parts = [(stored >> shift & (1 << bits) - 1).to(torch.uint8) for shift in shifts]
    return torch.cat(parts)[:count]


def _contradiction(what: str) -> CheckpointError:
    return CheckpointError(what, "The checkpoint is damaged: download or quantize it again.")
