"""Tests of a kernel provider's ops of adapters.

Suffixes: T tokens, I inputs, O outputs, S slots, R rows of a slot's first matrices, N rank.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferno.contracts import COMPUTE_DTYPES, DType, KernelProvider
from inferno.testing.draws import DrawTests, random

LAST_BIT = {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-10}
SLOTS = [0, 0, 1, -1, 1, 1, 1, 0, -1, 2]
"""Of each token: alone, in pairs, in threes, and none."""


def added(y_TO: Tensor, x_TI: Tensor, down_SRI: Tensor, ups: list[Tensor]) -> Tensor:
    """Return y with the adapters' products, in float64."""
    result_TO = y_TO.double()
    for t, slot in enumerate(SLOTS):
        if slot >= 0:
            h_R = down_SRI[slot].double() @ x_TI[t].double()
            parts = zip(h_R.split([len(up_SNO[0]) for up_SNO in ups]), ups, strict=True)
            result_TO[t] += torch.cat([h_N @ up_SNO[slot].double() for h_N, up_SNO in parts])
    return result_TO


class AdapterOpTests(DrawTests):
    """A part of `KernelProviderTests`."""

    @pytest.mark.parametrize("outputs", [(96,), (40, 16, 7)])
    @pytest.mark.parametrize("inputs", [128, 100])
    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    def test_adapters_are_added(
        self, item: KernelProvider, dtype: DType, inputs: int, outputs: tuple[int, ...]
    ) -> None:
        """Of several matrices side by side, for tokens of several slots; one slot's values that are
        not finite do not reach the tokens of others."""
        shrink, expand = (self._op(item, op, dtype) for op in ("shrink", "expand"))
        if shrink is None or expand is None:
            return
        kind, rank = getattr(torch, dtype), 12
        x_TI = random(len(SLOTS), inputs + 8)[:, 4:-4].to(kind)
        down_SRI = (random(3, rank * len(outputs), inputs) / inputs**0.5).to(kind)
        ups = [random(3, rank, each).to(kind) for each in outputs]
        y_TO, slots_T = random(len(SLOTS), sum(outputs)).to(kind), torch.tensor(SLOTS)
        exact_TO = added(y_TO, x_TI, down_SRI, ups)

        def computed() -> Tensor:
            result: Tensor = expand(y_TO.clone(), shrink(x_TI, down_SRI, slots_T), ups, slots_T)
            return result

        first_TO = computed()
        assert first_TO.dtype == kind
        error = (first_TO.double() - exact_TO).abs().max() / exact_TO.abs().max()
        assert error <= 2 * LAST_BIT[dtype]
        assert torch.equal(first_TO[slots_T < 0], y_TO[slots_T < 0])
        down_SRI[1, 0, 0] = float("inf")
        assert torch.equal(computed()[slots_T != 1], first_TO[slots_T != 1])
