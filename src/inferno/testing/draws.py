"""Tests of a kernel provider's ops that turn logits into tokens, and what all tests of providers
need: the ops that it does not refuse.

Suffixes: T rows of logits, V vocabulary, R resident rows, N biases, W words of 32 tokens.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from inferno.catalog import Catalog
from inferno.contracts import COMPUTE_DTYPES, DType, KernelNeed, KernelProvider, lazy
from inferno.ops import draws
from inferno.plan import find_device
from inferno.testing.installed import Installed
from inferno.testing.placed import Placed


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class DrawTests(Installed):
    """A part of `KernelProviderTests`."""

    provider: ClassVar[str]
    device: ClassVar[str] = "cpu"
    """As in `--device`."""

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> KernelProvider:
        return catalog.named(KernelProvider, cls.provider).item

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    def test_draws(self, item: KernelProvider, dtype: DType) -> None:
        """Rows of every kind at once; many logits are equal."""
        if (run := self._op(item, "draw", dtype)) is None:
            return
        width, middle = 700, 2**30 + 12345
        kinds = [
            (1.0, 0.0, width, 1.0, draws.BEST),
            (0.7, 0.1, width, 1.0, middle),
            (1.0, 0.0, 20, 1.0, middle),
            (1.0, 0.0, width, 0.9, middle),
            (3.0, 0.01, width, 0.999, middle),
            (1.5, 0.3, 40, 0.5, middle),
        ]
        temperature, min_p, top_k, top_p, uniform = map(torch.tensor, zip(*kinds, strict=True))
        params = draws.DrawParams(temperature, min_p, top_k, (top_p * 2**31).long(), uniform)
        x_TV = ((random(6, width) * 32).round() / 8).to(getattr(torch, dtype))
        assert torch.equal(run(x_TV, params, None), draws.draw(x_TV, params, None))
        own_TV = x_TV.clone()
        x_TV[1::2] = float("-inf")
        for given in (params, None):
            assert torch.equal(run(x_TV, given, own_TV), draws.draw(x_TV, given, own_TV))

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    def test_adjusted_logits(self, item: KernelProvider, dtype: DType) -> None:
        """By penalties of two resident rows, biases, and masks that end too early."""
        if (run := self._op(item, "adjust", dtype)) is None:
            return
        x_TV = (4 * random(2, 500)).to(getattr(torch, dtype))
        counts_RV = torch.arange(3 * 500, dtype=torch.int32).view(3, 500) % 4
        floats = map(torch.tensor, ([1.5, 1.0], [0.25, 0.5], [0.125, -1.0]))
        penalties = draws.Penalties(torch.tensor([2, 0]), counts_RV, counts_RV, *floats)
        at_N, ids_N = torch.tensor([[0, 0, 1], [3, 490, 7]])
        biases = draws.Biases(at_N, ids_N, torch.tensor([float("-inf"), 2.0, -3.0]))
        words_TW = torch.arange(-(2**31), 2**31, 2**32 // 30, dtype=torch.int64)[:30]
        words_TW = words_TW.int().view(2, 15)
        for given in ((penalties, None, None), (None, biases, None), (penalties, biases, words_TW)):
            torch.testing.assert_close(run(x_TV, *given), draws.adjust(x_TV, *given))

    def _refused(self, item: KernelProvider, op: str, dtype: DType, layout: str = "") -> bool:
        return (
            item.refuses(
                KernelNeed(op=op, dtype=dtype, device=find_device(self.device), layout=layout)
            )
            is not None
        )

    def _op(self, item: KernelProvider, op: str, dtype: DType):  # type: ignore[no-untyped-def]  # each op its own signature
        if op not in item.ops or self._refused(item, op, dtype):
            return None
        return self._bound(item, op)

    def _bound(self, item: KernelProvider, op: str):  # type: ignore[no-untyped-def]  # as `_op`
        run = lazy.resolved(item.ops[op])
        return run if self.device == "cpu" else Placed(run, self.device)
