"""Low-rank adapters in slots, as defined by `inferno.ops`. Grids follow from shapes alone: which
slots a step has is read on the device, so that launches can be captured.

Suffixes: T tokens, I inputs, O outputs, S slots, N rank, R rows of a slot's first matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from attrs import frozen
from torch import Tensor

from inferno_triton import chips, lora


@frozen
class _Tile:
    """A program's share: the most tokens, rows of a first matrix or rank, columns of a first matrix
    at once, and outputs."""

    tokens: int
    rows: int
    columns: int
    outputs: int
    stages: int

    def most(self, tokens: int, slots: int) -> int:
        """Return the most slots that a tile's tokens can have."""
        return min(self.tokens, tokens, slots)

    def rank(self, rows: int) -> int:
        """Return the rows of a block: no fewer than a matrix instruction multiplies."""
        return min(self.rows, max(16, int(triton.next_power_of_2(rows))))

    @classmethod
    def of(cls, tokens: int, matrix: Tensor) -> _Tile:
        if matrix.dtype == torch.float32:  # twice the memory, and more registers
            return _FLOAT32
        return _FEW if tokens <= _MANY.tokens else _MANY


_FEW, _MANY, _FLOAT32 = (
    _Tile(16, 64, 128, 128, 2),
    _Tile(64, 64, 64, 128, 2),
    _Tile(16, 32, 64, 64, 1),
)


def shrink(x_TI: Tensor, down_SRI: Tensor, slots_T: Tensor) -> Tensor:
    """Return each token's product with the first matrices of its slot, (T, R) in float32; zeros for
    tokens of slot -1. `slots_T` is int64."""
    x_TI = x_TI if x_TI.stride(1) == 1 else x_TI.contiguous()
    (tokens, inputs), (slots, ranks, _) = x_TI.shape, down_SRI.shape
    if tokens == 0:
        return x_TI.new_empty(0, ranks, dtype=torch.float32)
    tile = _Tile.of(tokens, down_SRI)
    tiles, most, rows = triton.cdiv(tokens, tile.tokens), tile.most(tokens, slots), tile.rank(ranks)
    blocks, processors = triton.cdiv(ranks, rows), chips.chip_at(x_TI.device).processors
    # One adapter must occupy the processors: programs for other slots have nothing to do.
    splits = max(1, min(triton.cdiv(inputs, tile.columns), 2 * processors // (tiles * blocks)))
    out = x_TI.new_empty(splits, tokens, ranks, dtype=torch.float32)
    lora.shrink[(tiles * most, blocks, splits)](
        x_TI, down_SRI, slots_T, out, tokens, ranks, inputs, x_TI.stride(0),
        MOST=most, BT=tile.tokens, BR=rows, BC=tile.columns, num_warps=4, num_stages=tile.stages,
    )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def expand(y_TO: Tensor, h_TR: Tensor, ups: Sequence[Tensor], slots_T: Tensor) -> Tensor:
    """Return y plus the products of a `shrink` with the second matrices, (S, N, outputs), which
    stand side by side in y. They are rounded to the matrices' type before. y itself is changed if
    its rows are contiguous."""
    y_TO = y_TO if y_TO.stride(1) == 1 else y_TO.contiguous()
    h_TR = h_TR if h_TR.stride(1) == 1 else h_TR.contiguous()
    tokens, rank_at, output_at = len(y_TO), 0, 0
    for up_SNO in ups if tokens else ():
        slots, rank, outputs = up_SNO.shape
        tile = _Tile.of(tokens, up_SNO)
        tiles, most = triton.cdiv(tokens, tile.tokens), tile.most(tokens, slots)
        lora.expand[(tiles * most, triton.cdiv(outputs, tile.outputs))](
            y_TO[:, output_at:], h_TR[:, rank_at:], up_SNO, slots_T,
            tokens, rank, outputs, y_TO.stride(0), h_TR.stride(0),
            MOST=most, BT=tile.tokens, BN=tile.rank(rank), BO=tile.outputs,
            num_warps=4, num_stages=tile.stages,
        )  # fmt: skip
        rank_at, output_at = rank_at + rank, output_at + outputs
    return y_TO
