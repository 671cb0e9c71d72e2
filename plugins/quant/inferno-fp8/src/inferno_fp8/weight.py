"""Loads FP8 matrices, or quantizes to them: they stay float8 in memory and are dequantized a few
rows at a time.

Reference: transformers' integrations/finegrained_fp8.py; activations stay in the compute type here,
where it rounds them to float8 too. Suffixes: O rows, I columns, P rows of blocks, Q columns of
blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import Fp8Blocks
from inferno.nn.fp8 import CHUNK
from inferno_fp8 import block_of, scale_part


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Fp8Blocks:
    """Raises CheckpointError for a scale that is not finite."""
    data_OI = tensors["weight"].contiguous()
    scales_PQ, block = tensors[scale_part(stored.parts)].float(), block_of(stored)
    if not scales_PQ.isfinite().all():
        raise CheckpointError(
            "a scale is infinite or not a number", "The checkpoint is damaged: download it again."
        )
    if block[0] == 1:
        scales_PQ = scales_PQ.reshape(-1, 1).expand(len(data_OI), 1)
    return Fp8Blocks(data_OI, scales_PQ.contiguous(), block, getattr(torch, dtype))


def pack(weight_OI: Tensor) -> Fp8Blocks:
    """Quantize a matrix, with a scale for each row: its largest magnitude becomes float8's."""
    rows, columns = weight_OI.shape
    largest = torch.finfo(torch.float8_e4m3fn).max
    data_OI = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=weight_OI.device)
    scales_O1 = torch.empty(rows, 1, dtype=torch.float32, device=weight_OI.device)
    step = max(1, CHUNK // max(1, columns))
    for start in range(0, rows, step):
        chunk = slice(start, start + step)
        values_RI = weight_OI[chunk].float()
        scale_R1 = values_RI.abs().amax(1, keepdim=True) / largest
        scale_R1 = torch.where(scale_R1 > 0, scale_R1, 1.0)
        data_OI[chunk] = (values_RI / scale_R1).clamp(-largest, largest).to(data_OI.dtype)
        scales_O1[chunk] = scale_R1
    return Fp8Blocks(data_OI, scales_O1, (1, columns), weight_OI.dtype)
