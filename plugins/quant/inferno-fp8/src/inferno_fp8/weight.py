"""Loads FP8 matrices: they stay float8 in memory and are dequantized a few rows at a time.

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
