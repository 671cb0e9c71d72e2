"""Matrices of codes that select one of 16 floats (nf4, fp4), at every level: near the values, and
exactly the product of the values that panels hold.

Suffixes: O rows (output features), I columns (input features), T tokens, N rows of x for stacked
matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dense import assert_product, assert_recorded, assert_saved, random
from test_grouped import starts
from torch import Tensor

from inferno.contracts import LINEAR, Device, KernelNeed
from inferno.nn import TableGroups
from inferno_cpu import _native, refuses
from inferno_cpu.dense import Panels
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.layouts import TABLE_GROUPS
from inferno_cpu.linear import stack

pytestmark = pytest.mark.usefixtures("isa")
SHAPES = [(1, 1), (16, 2), (17, 3), (100, 4), (130, 5)]
"""Rows, groups of columns."""
TOKENS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 33, 64, 100]
NEAR = {"nf4": 2e-3, "fp4": 3e-7}
"""Greatest relative error of a value: rounded to bfloat16 with a factor that is not 1 for nf4;
fp4's are exact but for the rounding of the scale."""


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _native.threads()
    _native.set_threads(request.param)
    yield request.param
    _native.set_threads(before)


def matrix(
    layout: str, rows: int, groups: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> TableGroups:
    generator = torch.Generator().manual_seed(seed)
    columns = groups * TABLE_GROUPS[layout]
    data_OB = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    scales_OG = torch.randn(rows, groups, generator=generator) / 32
    return TableGroups(data_OB, scales_OG, layout.partition("_")[0], dtype)


def packed(*weights: TableGroups) -> Panels:
    built = stack(*weights)
    assert isinstance(built, Panels)
    return built


def held(panels: Panels) -> Tensor:
    """The values that panels of float32 hold."""
    return panels.rows(torch.arange(panels.shape[0]))


@pytest.mark.parametrize("layout", TABLE_GROUPS)
def test_values_are_near(layout: str) -> None:
    for rows, groups in SHAPES:
        weight = matrix(layout, rows, groups, seed=rows)
        values_OI = weight.values(slice(None)).double()
        error_OI = (held(packed(weight)).double() - values_OI).abs()
        assert (error_OI <= NEAR[weight.kind] * values_OI.abs()).all()


@pytest.mark.parametrize("layout", TABLE_GROUPS)
@pytest.mark.parametrize("type_", DTYPES)
def test_product(layout: str, type_: torch.dtype) -> None:
    for rows, groups in SHAPES:
        weight = matrix(layout, rows, groups)
        panels, columns = packed(weight), weight.shape[1]
        for tokens in TOKENS if rows == 100 else (1, 5, 17):
            x_TI = random(tokens, columns, dtype=type_, seed=tokens)
            bias_O = random(rows, dtype=torch.float32, seed=7) if tokens % 2 else None
            assert_product(panels.matmul(x_TI, bias_O), x_TI, held(panels), bias_O)


@pytest.mark.parametrize("layout", ["nf4_g64", "fp4_g64"])
def test_products_are_near_those_in_float64(layout: str) -> None:
    """Of the dequantized matrix, with activations in bfloat16: the bound of all schemes."""
    weight = matrix(layout, 256, 16)
    for tokens in (1, 16, 40):
        x_TI = random(tokens, weight.shape[1], dtype=torch.bfloat16)
        exact_TO = x_TI.double() @ weight.values(slice(None)).double().T
        error_TO = packed(weight).matmul(x_TI.float()).double() - exact_TO
        assert error_TO.norm() <= 1e-3 * exact_TO.norm()
        error_TO = packed(weight).matmul(x_TI).double() - exact_TO
        assert error_TO.norm() <= 2e-3 * exact_TO.norm()


@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float32])
def test_a_token_has_the_same_product_in_any_company(type_: torch.dtype) -> None:
    for layout in TABLE_GROUPS:
        panels = packed(matrix(layout, 64, 3))
        x_TI = random(40, panels.shape[1], dtype=type_)
        y_TO = panels.matmul(x_TI)
        for count in (1, 3, 6):
            assert torch.equal(panels.matmul(x_TI[5 : 5 + count]), y_TO[5 : 5 + count])


@pytest.mark.parametrize("rows", [(16, 32, 48), (5, 20, 33)])
def test_matrices_are_stacked(rows: tuple[int, ...]) -> None:
    weights = [matrix("nf4_g64", count, 3, seed=count) for count in rows]
    assert torch.equal(held(packed(*weights)), torch.cat([held(packed(w)) for w in weights]))


@pytest.mark.parametrize("layout", ["nf4_g64", "fp4_g32"])
@pytest.mark.parametrize("counts", [[1] * 8, [0, 5, 0], [3, 17, 0, 9, 8, 16, 1], [600, 1, 511]])
def test_grouped(counts: list[int], layout: str) -> None:
    weights = [matrix(layout, 20, 2, seed=e) for e in range(len(counts))]
    x_NI = random(sum(counts), weights[0].shape[1], dtype=torch.bfloat16)
    biases = [random(20, dtype=torch.bfloat16, seed=e) for e in range(len(counts))]
    y_NO = packed(*weights).grouped(x_NI, starts(counts), torch.cat(biases))
    for e, (x_TI, y_TO) in enumerate(zip(x_NI.split(counts), y_NO.split(counts), strict=True)):
        assert_product(y_TO, x_TI, held(packed(weights[e])), biases[e])


@pytest.mark.parametrize("type_", DTYPES)
def test_argmax_is_that_of_the_product(type_: torch.dtype) -> None:
    panels = packed(matrix("nf4_g64", 1000, 3))
    for tokens in (1, 3, 16, 100):
        x_TI = random(tokens, panels.shape[1], dtype=type_, seed=tokens)
        assert torch.equal(panels.argmax(x_TI), panels.matmul_float32(x_TI).argmax(-1))


def test_what_is_not_finite_stays_within_its_row() -> None:
    panels = packed(matrix("nf4_g64", 40, 3, torch.bfloat16))
    x_TI = random(20, 192, dtype=torch.bfloat16)
    for tokens in (2, 20):
        clean_TO = panels.matmul(x_TI[:tokens])
        bad_TI = x_TI[:tokens].clone()
        bad_TI[1, 7] = float("nan")
        y_TO = panels.matmul(bad_TI)
        assert y_TO[1].isnan().all() and torch.equal(y_TO[0], clean_TO[0])


def test_panels_are_saved_and_loaded() -> None:
    weight = packed(matrix("fp4_g128", 40, 3, torch.bfloat16))
    assert weight.nbytes == 48 * 3 * (128 // 2 + 4)
    assert_saved(weight)


def test_a_recorded_product_is_repeated() -> None:
    assert_recorded(packed(matrix("nf4_g64", 40, 3)))


def test_other_groups_are_left_to_torch() -> None:
    weight = TableGroups(
        torch.zeros(16, 24, dtype=torch.uint8), torch.ones(16, 3), "nf4", torch.bfloat16
    )
    need = KernelNeed(
        op=LINEAR, dtype="bfloat16", device=Device("cpu"), layout=weight.layout, shape=weight.shape
    )
    assert f"stored as {weight.layout}" in str(refuses(need))
    assert stack(weight) is None


@given(
    layout=st.sampled_from(list(TABLE_GROUPS)),
    rows=st.integers(1, 70),
    groups=st.integers(1, 6),
    tokens=st.integers(1, 40),
    type_=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
@settings(deadline=None, derandomize=True, database=None, max_examples=60)
def test_any_size(
    layout: str, rows: int, groups: int, tokens: int, type_: torch.dtype, seed: int
) -> None:
    panels = packed(matrix(layout, rows, groups, seed=seed))
    x_TI = random(tokens, panels.shape[1], dtype=type_, seed=seed + 1)
    assert_product(panels.matmul(x_TI), x_TI, held(panels))
