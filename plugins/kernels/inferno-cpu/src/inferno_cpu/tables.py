"""Packs matrices of 4-bit codes that select one of 16 floats into panels, half a byte for each
value. The kernels look the floats up in bfloat16, and do not round activations."""

from __future__ import annotations

from inferno.nn import TableGroups
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import CODES, PANEL_ROWS, codes_nbytes
from inferno_cpu.memory import pages, pieces


def pack(*parts: TableGroups) -> Panels:
    """Copy `parts`, stacked along the rows, into panels. All are of one layout of
    `layouts.TABLE_GROUPS`; the rows of all but the last are divisible by 16."""
    layout, columns, dtype = parts[0].layout, parts[0].shape[1], parts[0].dtype
    panel_bytes = codes_nbytes(layout, (PANEL_ROWS, columns))
    rows = sum(part.shape[0] for part in parts)
    panels = pages(codes_nbytes(layout, (rows, columns)))
    to = panels.data_ptr()
    for part in parts:
        data_OB, scales_OG = part.data.contiguous(), part.scales.contiguous()
        for piece in pieces(data_OB):
            codes, scales = data_OB[piece], scales_OG[piece]
            _native.dense_repack_table(
                CODES[layout],
                codes.data_ptr(),
                codes.shape[1],
                scales.data_ptr(),
                to,
                len(codes),
                columns,
            )
            to += len(codes) // PANEL_ROWS * panel_bytes
    return Panels(panels, (rows, columns), dtype, layout)
