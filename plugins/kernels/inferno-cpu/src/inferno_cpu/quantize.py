"""The provider's `quantize`: dense matrices to packed layouts, on all threads.

Suffixes: O rows, I columns, B bytes of a packed row, G groups of columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno_cpu import _native
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.layouts import QUANTIZED
from inferno_cpu.memory import passing, pieces
from inferno_cpu.threads import use_torch_threads


def quantize(layout: str, weight_OI: Tensor, importance_I: Tensor | None) -> tuple[Tensor, ...]:
    """Quantize a matrix to a layout of `QUANTIZED`, whose blocks its columns are divisible by.
    `importance_I`, float32, weighs the squared errors of the columns.

    Returns ggml's blocks, uint8 (O, B); for groups of integers the codes, two in a byte (O, I / 2),
    and their scales and zero points, float16 (O, G). The codes are the same at every level of
    instructions."""
    use_torch_threads()
    number, block, nbytes = QUANTIZED[layout]
    rows, columns = weight_OI.shape
    assert columns % block == 0, "the plan asks for shapes that fit only"
    weight_OI = weight_OI.contiguous()
    data_OB = passing(rows * columns // block * nbytes).view(rows, -1)
    grids = [torch.empty(rows, columns // block, dtype=torch.float16) for _ in range(2)]
    integers = layout.startswith("int")
    weighed = None if importance_I is None else importance_I.float().contiguous()
    for piece in pieces(weight_OI):
        part = weight_OI[piece]
        _native.quantize(
            number,
            DTYPES[weight_OI.dtype],
            part.data_ptr(),
            0 if weighed is None else weighed.data_ptr(),
            data_OB[piece].data_ptr(),
            grids[0][piece].data_ptr() if integers else 0,
            grids[1][piece].data_ptr() if integers else 0,
            len(part),
            columns,
        )
    return (data_OB, *grids) if integers else (data_OB,)
