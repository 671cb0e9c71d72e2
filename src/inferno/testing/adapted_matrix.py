"""Tests of adapters beside a matrix of any scheme: it keeps its own error, and gets no other.

Suffixes: O rows, I columns, T tokens, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from inferno.contracts import QuantScheme
from inferno.nn import Weight
from inferno.nn.lora import Adapted, Pairs, StepSlots
from inferno.ops.reference import TORCH
from inferno.testing.draws import random
from inferno.testing.installed import Installed

_SLOTS = [-1, 1, 0, 1, -1]
_RANK = 6
_ERROR = {"float32": 1e-5, "bfloat16": 2e-2}
"""Of the adapter's part, relative to the result."""


class AdaptedMatrixTests(Installed):
    """A part of `QuantSchemeTests`."""

    shapes: ClassVar[Sequence[tuple[int, int]]]

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Any]:
        raise NotImplementedError

    def _load(self, item: QuantScheme, parts: Any, dtype: str) -> Any:
        raise NotImplementedError

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_adapters_are_added_to_its_products_and_rows(
        self, item: QuantScheme, dtype: str
    ) -> None:
        """Those of tokens without an adapter are as they were, bit by bit."""
        kind, slots_T = getattr(torch, dtype), torch.tensor(_SLOTS)
        without_T = slots_T < 0
        for rows, columns in self.shapes:
            inner = self._load(item, self.parts(rows, columns, 0), dtype)
            a_SRI = (random(2, _RANK, columns) / columns**0.5).to(kind)
            b_SRO = random(2, _RANK, rows).to(kind)
            step = StepSlots(slots_T, slots_T, active=True, count=len(_SLOTS))
            x_TI = random(len(_SLOTS), columns).to(kind)
            ids_T = torch.arange(len(_SLOTS)) % rows
            own_T = slots_T.clamp(min=0)
            delta_TOI = torch.einsum("tro,tri->toi", b_SRO.double()[own_T], a_SRI.double()[own_T])
            products_TO = torch.einsum("toi,ti->to", delta_TOI, x_TI.double())
            cases: list[tuple[bool, Callable[[Weight], Tensor], Tensor]] = [
                (False, partial(_product, x_TI), products_TO),
                (True, partial(_logits, x_TI), products_TO),
                (True, partial(_rows, ids_T), delta_TOI[range(len(ids_T)), ids_T]),
            ]
            for logits, computed, delta in cases:
                pairs = Pairs([rows], columns, 2, _RANK, TORCH, x_TI.new_empty(0), logits)
                for slot in (0, 1):
                    pairs.write(slot, 0, (a_SRI[slot], b_SRO[slot]))
                before, after = computed(inner), computed(Adapted(inner, pairs, step))
                assert after.dtype == before.dtype
                assert torch.equal(after[without_T], before[without_T])
                wanted = (before.double() + delta)[~without_T]
                error = (after[~without_T].double() - wanted).norm()
                size = before[~without_T].double().norm() + delta[~without_T].norm()
                assert error < _ERROR[dtype] * size


def _product(x_TI: Tensor, weight: Weight) -> Tensor:
    return weight.matmul(x_TI)


def _logits(x_TI: Tensor, weight: Weight) -> Tensor:
    return weight.matmul_float32(x_TI)


def _rows(ids_T: Tensor, weight: Weight) -> Tensor:
    return weight.rows(ids_T)
