"""IQ4_XS as IQ4_NL: both index the same 16 values, in groups of 32. IQ4_XS computes the scale of a
group as the product of a float16 and an integer, IQ4_NL stores it as a float16. Rounding it costs a
relative error of 2**-12, less than the compute type's own; in float32 the matrix becomes dense.

Suffixes: O rows, B bytes of a packed row, N blocks of 256 values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.contracts import StoredMatrix
from inferno.nn import Weight
from inferno_gguf import unpacked
from inferno_gguf.blocks import CHUNK, Blocks, half, shape_of
from inferno_gguf.ggml import BY_NAME

NAME, AS = "iq4_xs", "iq4_nl"
_GROUPS = 8
"""Groups of a block."""


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
    """Raises CheckpointError unless the rows are whole blocks."""
    [packed_OB] = tensors.values()
    recoded_OB = None if dtype == "float32" else recode(packed_OB)
    if recoded_OB is None:
        return unpacked.load(stored, tensors, dtype=dtype)
    return Blocks(AS, recoded_OB, getattr(torch, dtype))


def recode(packed_OB: Tensor) -> Tensor | None:
    """Return IQ4_NL's bytes; None if float16 cannot hold one of the scales."""
    rows, columns = shape_of(NAME, packed_OB)
    kind = BY_NAME[AS]
    recoded_OB = packed_OB.new_empty(rows, columns // kind.values * kind.nbytes)
    step = max(1, CHUNK // columns)
    for start in range(0, rows, step):
        blocks = packed_OB[start : start + step].reshape(-1, BY_NAME[NAME].nbytes)
        scale_N8 = _scales(blocks)
        if not scale_N8.isfinite().all():
            return None
        codes = blocks[:, 8:].reshape(-1, _GROUPS, 16)
        parts = [scale_N8[..., None].view(torch.uint8), codes]
        recoded_OB[start : start + step] = torch.cat(parts, -1).view(-1, recoded_OB.shape[1])
    return recoded_OB


def _scales(blocks: Tensor) -> Tensor:
    """Return the scale of each group, float16."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)
    high_N8 = (blocks[:, 2:4, None] >> shifts & 3).flatten(1)
    low_N8 = (blocks[:, 4:8, None] >> shifts[::2] & 15).flatten(1)
    return (half(blocks, 0) * ((low_N8 | high_N8 << 4).float() - 32)).half()
