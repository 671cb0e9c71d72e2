"""Dense weights, with and without the processor's bfloat16 instructions: each branch is tested on
every machine."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.nn import Dense, Finalize, MergedLinear, finalize, weight
from inferno.nn.weight import OneDNN
from inferno.testing.lint import Lint


def _reorder(data_OI: Tensor, rows: int) -> Tensor:
    return data_OI.clone()


def _multiply(x_TI: Tensor, packed_OI: Tensor, bias_O: Tensor | None, *rest: object) -> Tensor:
    return F.linear(x_TI, packed_OI, bias_O)


@pytest.fixture(params=[True, False], ids=["bfloat16 instructions", "none"])
def packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether oneDNN's layout is used; where this processor has none, plain torch stands in for its
    two operators."""
    wanted: bool = request.param
    if wanted and not weight.onednn_packs_bfloat16():
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", _reorder, raising=False)
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", _multiply, raising=False)
    monkeypatch.setattr(weight, "onednn_packs_bfloat16", lambda: wanted)
    return wanted


def test_a_matrix_in_onednns_layout_multiplies_as_before(packs: bool) -> None:
    data_OI, x_TI = torch.randn(8, 16).bfloat16(), torch.randn(3, 16).bfloat16()
    matrix = Dense(data_OI).for_matmul()
    assert isinstance(matrix, OneDNN) == packs
    assert matrix.for_matmul() is matrix, "it is in its final layout"
    torch.testing.assert_close(matrix.matmul(x_TI), F.linear(x_TI, data_OI))


def test_merged_linears_are_finalized_once_and_compute_the_same(packs: bool) -> None:
    merged = MergedLinear(16, q_proj=8, k_proj=4)
    sizes = {"q_proj": 8, "k_proj": 4}
    data = {name: torch.randn(size, 16).bfloat16() for name, size in sizes.items()}
    for name, data_OI in data.items():
        merged.linears[name].weight = Dense(data_OI)
    finalize(merged, Finalize())
    assert isinstance(merged.merged, OneDNN) == packs and not merged.linears
    x_TI = torch.randn(3, 16).bfloat16()
    for y_TO, data_OI in zip(merged(x_TI), data.values(), strict=True):
        torch.testing.assert_close(y_TO, F.linear(x_TI, data_OI))


@pytest.mark.parametrize("counts", [[40], [0, 33, 1, 0, 16, 0], [7] * 9])
def test_products_by_group_in_tiles_wait_for_nothing(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix without rows, rows for one matrix alone, and tiles in several parts."""
    monkeypatch.setattr(weight, "_TILE_VALUES", 3 * 8 * 16)
    data_OI, x_NI = torch.randn(8 * len(counts), 16), torch.randn(sum(counts), 16)
    starts_E1 = torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32)
    with Lint() as lint:
        y_NO = weight.in_tiles(Dense(data_OI), x_NI, starts_E1)
    assert lint.found == [] and lint.count > 10
    parts = zip(x_NI.split(counts), data_OI.chunk(len(counts)), strict=True)
    torch.testing.assert_close(y_NO, torch.cat([x @ own_OI.T for x, own_OI in parts]))
