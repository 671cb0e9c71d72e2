"""Block types that are not kept packed: gguf-py dequantizes them at load into a dense matrix.

Suffixes: O rows, I columns, B bytes of a packed row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.errors import UnsupportedError
from inferno.nn import Dense
from inferno_gguf.blocks import shape_of
from inferno_gguf.ggml import BY_NAME

CHUNK = 1 << 22
"""Values dequantized at once: a float32 copy of a whole matrix would raise peak memory."""


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Dense:
    [(layout, packed_OB)] = tensors.items()
    return Dense(dequantize(layout, packed_OB, getattr(torch, dtype)))


def dequantize(layout: str, packed_OB: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantize (O, B) bytes to (O, I) values, through float32. Raises CheckpointError unless the
    rows are whole blocks, UnsupportedError for a type unknown to this gguf-py."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as reference

    out_features, in_features = shape_of(layout, packed_OB)
    try:
        number = GGMLQuantizationType(BY_NAME[layout].number)
    except ValueError as error:
        raise UnsupportedError(
            f"the installed gguf does not know {layout}", "Upgrade it: pip install --upgrade gguf"
        ) from error
    weight_OI = torch.empty(out_features, in_features, dtype=dtype, device=packed_OB.device)
    step = max(1, CHUNK // max(1, in_features))
    for start in range(0, out_features, step):
        rows = packed_OB[start : start + step].cpu().numpy()
        weight_OI[start : start + step] = torch.from_numpy(reference(rows, number))
    return weight_OI
