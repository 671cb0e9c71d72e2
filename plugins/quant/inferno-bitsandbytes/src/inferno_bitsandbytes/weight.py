"""Converts bitsandbytes matrices to inferno's public layouts, nf4 and fp4 without loss.

The format is that of https://github.com/bitsandbytes-foundation/bitsandbytes (functional.py,
QuantState). Suffixes: O rows, I columns, B bytes of a row, N blocks of consecutive values, G groups
of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from inferno.contracts import TABLES, IntLayout, StoredMatrix
from inferno.errors import CheckpointError
from inferno.nn import IntGroups, TableGroups, Weight
from inferno_bitsandbytes.checkpoint import shape_of, state_of
from inferno_bitsandbytes.packing import Packing


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
    """Raises CheckpointError if the values contradict the headers."""
    packing, to = Packing.of(stored), getattr(torch, dtype)
    layout = packing.layout
    if isinstance(layout, IntLayout):
        if "weight_format" in tensors and tensors["weight_format"].any():
            raise _contradiction("weight_format is not 0, row by row")
        return IntGroups.of(
            tensors["weight"].contiguous().view(torch.uint8) ^ 128,
            tensors["SCB"].float()[:, None] / 127,
            None,
            layout=layout,
            group=packing.columns,
            dtype=to,
        )
    table_16 = torch.tensor(TABLES[packing.kind])
    if not torch.allclose(tensors["quant_map"].float().cpu(), table_16, rtol=0, atol=1e-6):
        raise _contradiction(f"quant_map has other values than {packing.kind}")
    scales_N = scales(packing, tensors)
    groups = packing.columns // layout.group
    first = torch.arange(packing.rows * groups, device=scales_N.device) * layout.group
    data_OB = tensors["weight"].contiguous()
    return TableGroups(
        data_OB >> 4 | data_OB << 4,  # the earlier column is in the high half
        scales_N[first // packing.block].view(packing.rows, groups),
        packing.kind,
        to,
    )


def scales(packing: Packing, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the scale of each block, float32 (N)."""
    name = f"bitsandbytes__{packing.kind}"
    state = state_of(name, bytes(tensors[name].reshape(-1).cpu().numpy()))
    shape, values = (packing.rows, packing.columns), packing.rows * packing.columns
    if shape_of(name, state) != shape:
        raise _contradiction(f"quant_state says {state['shape']}, but {shape} values are stored")
    absmax_N = tensors["absmax"]
    if _blocks(values, state.get("blocksize")) != len(absmax_N):
        raise _contradiction(
            f"quant_state says blocks of {state.get('blocksize')!r} values, but there are "
            f"{len(absmax_N)} scales for {values}"
        )
    if not packing.nested:
        return absmax_N.float()
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    outer_M = tensors["nested_absmax"].float().reshape(-1)
    if _blocks(len(absmax_N), size) != len(outer_M):
        raise _contradiction(
            f"quant_state says nested blocks of {size!r} scales, but there are {len(outer_M)} for "
            f"{len(absmax_N)}"
        )
    assert isinstance(size, int), "it has a number of blocks"
    if not isinstance(offset, int | float) or not isfinite(offset):
        raise _contradiction(f"quant_state has the nested_offset {offset!r}")
    inner_N = tensors["nested_quant_map"].float()[absmax_N.int()]
    scales_N: Tensor = inner_N * outer_M.repeat_interleave(size)[: len(absmax_N)]
    return scales_N + torch.tensor(offset, dtype=torch.float32)


def _blocks(values: int, size: object) -> int | None:
    """Return the number of blocks of that size, None if it is not a size."""
    return -(-values // size) if isinstance(size, int) and size > 0 else None


def _contradiction(what: str) -> CheckpointError:
    return CheckpointError(what, "The checkpoint is damaged: download or quantize it again.")
