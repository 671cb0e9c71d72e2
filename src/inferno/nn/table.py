"""Matrices of codes that select one of 16 floats (`contracts.TableLayout`), with their reference in
torch's own operators.

Suffixes: O rows, I columns, B bytes of a row of codes, G groups of columns, T tokens, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import TABLES, TableLayout
from inferno.errors import CheckpointError
from inferno.nn.cut import Cut
from inferno.nn.packed import Packed
from inferno.nn.weight import Weight


class TableGroups(Packed):
    """Values of a table in groups of columns: value = scale · table[code].

    `data` is uint8 (O, B): two codes per byte, the earlier column in the low half. `scales` is
    float32 (O, G), `table` float32 (16).
    """

    data: Tensor
    scales: Tensor
    table: Tensor

    def __init__(self, data_OB: Tensor, scales_OG: Tensor, kind: str, dtype: torch.dtype) -> None:
        """`kind` names one of `contracts.TABLES`, `dtype` the compute type: that of `rows`. Raises
        CheckpointError for a scale that is not finite."""
        super().__init__()
        rows, columns = data_OB.shape[0], data_OB.shape[1] * 2
        assert columns % scales_OG.shape[1] == 0, "the scheme has checked them"
        assert scales_OG.dtype == torch.float32 and len(scales_OG) == rows, "scales are of rows"
        if not scales_OG.isfinite().all():
            raise CheckpointError(
                "a scale is infinite or not a number",
                "The checkpoint is damaged: download or quantize it again.",
            )
        self.shape, self.kind, self.dtype = (rows, columns), kind, dtype
        self.group = columns // scales_OG.shape[1]
        self.layout = TableLayout(table=kind, group=self.group).name
        self.register_buffer("data", data_OB)
        self.register_buffer("scales", scales_OG)
        self.register_buffer("table", torch.tensor(TABLES[kind], device=data_OB.device))

    def values(self, rows: slice | Tensor) -> Tensor:
        data_TB, scales_TG1 = self.data[rows], self.scales[rows][..., None]
        # For each byte the values of both of its codes: half as many look-ups.
        pairs_P2 = torch.stack([self.table.repeat(16), self.table.repeat_interleave(16)], -1)
        values_TB2 = F.embedding(data_TB.int(), pairs_P2)
        values_TGi = values_TB2.view(len(data_TB), scales_TG1.shape[1], self.group)
        return (values_TGi * scales_TG1).flatten(1)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        alike = [
            w
            for w in others
            if isinstance(w, TableGroups) and (w.layout, w.dtype) == (self.layout, self.dtype)
        ]
        if len(alike) != len(others) or any(w.shape[1] != self.shape[1] for w in alike):
            return None
        every = [self, *alike]
        return TableGroups(
            torch.cat([w.data for w in every]),
            torch.cat([w.scales for w in every]),
            self.kind,
            self.dtype,
        )

    def cut(self, cut: Cut) -> Weight:
        data_OB = cut.of(self.data, 2, 1) if cut.axis else cut.of(self.data)
        scales_OG = cut.of(self.scales, self.group) if cut.axis else cut.of(self.scales)
        return TableGroups(data_OB.contiguous(), scales_OG.contiguous(), self.kind, self.dtype)
