"""Converts Marlin matrices to inferno's public layouts: value = scale · (code - 8).

The format is that of https://github.com/IST-DASLab/marlin (marlin/__init__.py). Suffixes: O rows, I
columns, G groups of columns, W words of 32 bits, P places of four tiles.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.nn import IntGroups, packed_nibbles, unpacked_words
from inferno_marlin.packing import Packing

CHUNK = 1 << 24
"""Values unpacked at once."""
TILE = 16
SPAN = 64
"""Rows of the four tiles whose codes are permuted together."""


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> IntGroups:
    """Raises CheckpointError for a scale that is not finite in float16."""
    packing = Packing.of(stored)
    scales_OG = ordered_scales(tensors["s"], single=packing.group == packing.columns).T
    return IntGroups.of(
        packed_rows(tensors["B"]),
        scales_OG,
        torch.full_like(scales_OG, 8),
        layout=packing.layout,
        group=packing.group,
        dtype=getattr(torch, dtype),
    )


def packed_rows(codes_IW: Tensor) -> Tensor:
    """Return the `data` of an `IntGroups` from Marlin's tiles."""
    words = 2 * SPAN
    columns = TILE * len(codes_IW)
    step = words * max(1, CHUNK // (SPAN * columns))
    stored_P = places().argsort().to(codes_IW.device)
    parts = []
    for start in range(0, codes_IW.shape[1], step):
        codes = unpacked_words(codes_IW[:, start : start + step], 4)
        # Tiles of 16 columns and 16 rows, those of equal columns after each other.
        tiles = codes.view(-1, len(stored_P))[:, stored_P].view(len(codes_IW), -1, TILE, TILE)
        parts.append(packed_nibbles(tiles.permute(1, 3, 0, 2).reshape(-1, columns)))
    return torch.cat(parts)


def places() -> Tensor:
    """Return for each of the 1024 codes in four tiles, as stored, its place in them (P)."""
    order = []
    for thread in range(32):
        columns = [2 * (thread % 4) + each for each in (0, 1, 8, 9)]
        base = [TILE * each + thread // 4 + 8 * half for half in (0, 1) for each in columns]
        order += [256 * tile + base[each] for tile in range(4) for each in (0, 2, 4, 6, 1, 3, 5, 7)]
    return torch.tensor(order)


def ordered_scales(scales_GO: Tensor, *, single: bool) -> Tensor:
    """Return scales in the order of rows. `single`: there is one group."""
    if single:
        each = [2 * row + place for row in range(4) for place in (0, 1, 8, 9, 16, 17, 24, 25)]
    else:
        each = [row + 8 * place for row in range(8) for place in range(8)]
    stored = torch.tensor(each, device=scales_GO.device).argsort()
    return scales_GO.reshape(-1, len(each))[:, stored].view(scales_GO.shape)
