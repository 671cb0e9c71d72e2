"""Packs matrices of 8-bit floats into panels, a byte for each value: the kernels multiply their
exact values by activations that are not rounded.

Suffixes: P rows of blocks, Q columns of blocks, S panels of sixteen rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.nn import Fp8Blocks
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import CODES, FP8_BLOCK, FP8_BLOCKS, FP8_ROWS, PANEL_ROWS, codes_nbytes
from inferno_cpu.memory import pages, pieces


def pack(*parts: Fp8Blocks) -> Panels:
    """Copy `parts`, stacked along the rows, into panels. All are of one layout, which
    `layouts.refuses` does not refuse; the rows of all but the last are divisible by 16. Raises
    CheckpointError if a value is not a number."""
    columns, dtype = parts[0].shape[1], parts[0].dtype
    layout = FP8_ROWS if parts[0].block[0] == 1 else FP8_BLOCKS
    panel_bytes = codes_nbytes(layout, (PANEL_ROWS, columns))
    rows = sum(part.shape[0] for part in parts)
    panels = pages(codes_nbytes(layout, (rows, columns)))
    to = panels.data_ptr()
    for part in parts:
        scales, data_OI = panel_scales(part), part.data.contiguous()
        for piece in pieces(data_OI):
            codes, factors = data_OI[piece], scales[piece.start // PANEL_ROWS :]
            numbers = _native.dense_repack_fp8(
                CODES[layout],
                codes.data_ptr(),
                columns,
                factors.data_ptr(),
                to,
                len(codes),
                columns,
            )
            if not numbers:
                raise CheckpointError(
                    "a float8 matrix contains NaN",
                    "The checkpoint is damaged: download it again.",
                )
            to += len(codes) // PANEL_ROWS * panel_bytes
    return Panels(panels, (rows, columns), dtype, layout)


def panel_scales(weight: Fp8Blocks) -> Tensor:
    """Return float32 scales for each panel: of its 16 rows (S, 16), or of its blocks of 128
    columns (S, Q)."""
    rows, columns = weight.shape
    count = -(-rows // PANEL_ROWS)
    if weight.block[0] == 1:
        scales = weight.scales.new_zeros(count * PANEL_ROWS)
        scales[:rows] = weight.scales[:, 0]
        return scales.view(count, PANEL_ROWS)
    firsts = torch.arange(0, rows, PANEL_ROWS) // weight.block[0]
    scales_SQ = weight.scales[firsts].repeat_interleave(weight.block[1] // FP8_BLOCK, 1)
    return scales_SQ[:, : -(-columns // FP8_BLOCK)].contiguous()
