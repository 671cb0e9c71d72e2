"""Suffixes: O rows (output features), I columns (input features), T tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.nn.weight import Dense, Weight
from inferno.testing import trained_hidden, trained_matrix
from inferno_cpu import _native, packing
from inferno_cpu.capturing import capture
from inferno_cpu.dense import Panels, refuses
from inferno_cpu.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("isa")
KINDS = list(DTYPES)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Relative error of a result: float32 sums, or half a unit in the last place."""
SHAPES = [(1, 1), (16, 2), (17, 33), (48, 64), (100, 47), (130, 256), (5, 515)]
TOKENS = [*range(1, 18), 33, 64, 100]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _native.threads()
    _native.set_threads(request.param)
    yield request.param
    _native.set_threads(before)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_product(y_TO: Tensor, x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None = None) -> None:
    exact_TO = x_TI.double() @ w_OI.double().T
    size_TO = x_TI.double().abs() @ w_OI.double().abs().T
    if bias_O is not None:
        exact_TO += bias_O.double()
        size_TO += bias_O.double().abs()
    error_TO = (y_TO.double() - exact_TO).abs()
    allowed_TO = TOLERANCE[x_TI.dtype] * exact_TO.abs() + 2e-6 * size_TO
    assert y_TO.dtype == x_TI.dtype and y_TO.shape == exact_TO.shape
    assert (error_TO <= allowed_TO).all(), (error_TO - allowed_TO).max()


def assert_saved(weight: Weight) -> None:
    """A matrix that is saved and loaded gives the same product; too few bytes are an error."""
    saved = packing.save(weight)
    assert saved is not None
    about, [data] = saved
    again, x_TI = packing.load(about, data), random(3, weight.shape[1], dtype=torch.bfloat16)
    assert torch.equal(again.matmul(x_TI), weight.matmul(x_TI))
    with pytest.raises(ValueError, match="bytes instead of"):
        packing.load(about, data[:-1])


def assert_recorded(
    weight: Weight, multiply: Callable[[Any, Tensor], Tensor] = Panels.matmul
) -> None:
    """A product that is recorded is repeated with another x."""
    x_TI = random(3, weight.shape[1], dtype=torch.bfloat16)
    with torch.inference_mode():
        captured = capture()(lambda: multiply(weight, x_TI))
        x_TI.copy_(random(*x_TI.shape, dtype=torch.bfloat16, seed=5))
        captured.replay()
        assert torch.equal(captured.output, multiply(weight, x_TI))


@pytest.mark.parametrize("weight_type", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_matrix(shape: tuple[int, int], weight_type: torch.dtype) -> None:
    w_OI = random(*shape, dtype=weight_type)
    assert torch.equal(Panels.of(Dense(w_OI)).to_dense().data, w_OI)


@pytest.mark.parametrize("type_", KINDS)
@pytest.mark.parametrize("weight_type", KINDS)
def test_product(weight_type: torch.dtype, type_: torch.dtype, threads: int) -> None:
    for shape in SHAPES:
        w_OI = random(*shape, dtype=weight_type)
        panels = Panels.of(Dense(w_OI))
        for tokens in TOKENS if shape == (100, 47) else (1, 5, 17):
            x_TI = random(tokens, shape[1], dtype=type_, seed=tokens)
            assert_product(panels.matmul(x_TI), x_TI, w_OI)


@pytest.mark.parametrize("type_", KINDS)
def test_product_of_many_tokens(type_: torch.dtype, threads: int) -> None:
    """More than are packed at a time, more than stay in a cache, more than one piece along rows and
    tokens."""
    w_OI, x_TI = random(330, 258, dtype=torch.bfloat16), random(1030, 258, dtype=type_)
    assert_product(Panels.of(Dense(w_OI)).matmul(x_TI), x_TI, w_OI)


@pytest.mark.parametrize("type_", KINDS)
def test_bias(type_: torch.dtype) -> None:
    w_OI, x_TI, bias_O = (
        random(37, 40, dtype=type_),
        random(3, 40, dtype=type_),
        random(37, dtype=torch.float32),
    )
    assert_product(Panels.of(Dense(w_OI)).matmul(x_TI, bias_O), x_TI, w_OI, bias_O)


def test_float32_activations_are_not_rounded() -> None:
    w_OI = torch.full((16, 2), 1.0, dtype=torch.bfloat16)
    x_TI = torch.tensor([[1.0 + 2**-20, 2**-22]])
    assert Panels.of(Dense(w_OI)).matmul(x_TI)[0, 0] == 1.0 + 2**-20 + 2**-22


def test_views() -> None:
    """Strided rows, and strided columns."""
    wide_OI, wide_TI = random(50, 90, dtype=torch.bfloat16), random(7, 90, dtype=torch.bfloat16)
    panels = Panels.of(Dense(wide_OI[:, 3:48]))
    for x_TI in (wide_TI[:, 5:50], wide_TI[:, ::2]):
        assert_product(panels.matmul(x_TI), x_TI, wide_OI[:, 3:48])
    transposed = Panels.of(Dense(wide_OI.T))
    assert torch.equal(transposed.to_dense().data, wide_OI.T)


def test_no_tokens() -> None:
    panels = Panels.of(Dense(random(20, 6, dtype=torch.float32)))
    assert panels.matmul(torch.zeros(0, 6)).shape == (0, 20)
    assert panels.rows(torch.zeros(0, dtype=torch.int64)).shape == (0, 6)
    assert panels.argmax(torch.zeros(0, 6)).shape == (0,)


@pytest.mark.parametrize("id_", [-1, 20])
def test_a_row_that_is_not_there(id_: int) -> None:
    with pytest.raises(IndexError):
        Panels.of(Dense(random(20, 6, dtype=torch.float32))).rows(torch.tensor([0, id_]))


@pytest.mark.parametrize("type_", KINDS)
@pytest.mark.parametrize("weight_type", KINDS)
def test_products_for_heads_are_float32(
    weight_type: torch.dtype, type_: torch.dtype, threads: int
) -> None:
    """Rounded to x's type, they are what layers are given."""
    w_OI, bias_O = trained_matrix(130, 256).to(weight_type), 10 * random(130, dtype=torch.float32)
    panels = Panels.of(Dense(w_OI))
    for tokens in (1, 5, 17):
        x_TI = trained_hidden(tokens, 256).to(type_)
        for bias in (None, bias_O.to(type_)):
            y_TO = panels.matmul_float32(x_TI, bias)
            assert_product(y_TO, x_TI.float(), w_OI, bias)
            assert torch.equal(y_TO.to(type_), panels.matmul(x_TI, bias))
    assert_recorded(panels, Panels.matmul_float32)


@pytest.mark.parametrize("type_", KINDS)
def test_argmax_sees_what_the_type_of_x_cannot_tell_apart(type_: torch.dtype) -> None:
    w_OI = torch.ones(300, 2, dtype=type_)
    w_OI[:, 1], w_OI[[170, 290], 1] = 0, 1
    x_TI = torch.tensor([[1e4, 2.0**-6], [-40.0, 2.0**-15]], dtype=type_)
    assert Panels.of(Dense(w_OI)).argmax(x_TI).tolist() == [170, 170]


@pytest.mark.parametrize("type_", KINDS)
@pytest.mark.parametrize("out_features", [5, 32, 1000])
def test_argmax_is_that_of_the_product(type_: torch.dtype, out_features: int, threads: int) -> None:
    panels = Panels.of(Dense(random(out_features, 24, dtype=type_)))
    for tokens in (1, 3, 16, 100):
        x_TI = random(tokens, 24, dtype=type_, seed=tokens)
        assert torch.equal(panels.argmax(x_TI), panels.matmul_float32(x_TI).argmax(-1))


def test_argmax_of_negative_logits() -> None:
    """The zeros that pad the last panel are not logits."""
    assert Panels.of(Dense(-torch.ones(19, 4))).argmax(torch.ones(1, 4)).tolist() == [0]


def test_argmax_of_equals_is_the_lowest_id() -> None:
    w_OI = torch.zeros(700, 1)
    w_OI[[30, 31, 400]] = 1.0
    assert Panels.of(Dense(w_OI)).argmax(torch.tensor([[1.0], [0.0], [-1.0]])).tolist() == [
        30,
        0,
        0,
    ]


@pytest.mark.parametrize("type_", KINDS)
def test_argmax_of_what_is_not_finite(type_: torch.dtype) -> None:
    nan, inf = float("nan"), float("inf")
    cases = [
        ([nan, 1.0, 3.0, -inf], 2),
        ([nan] * 4, -1),
        ([-inf] * 4, -1),
        ([1.0, inf, nan, 2.0], -1),
    ]
    for values, best in cases:
        w_OI = torch.tensor(values, dtype=type_)[:, None]
        assert Panels.of(Dense(w_OI)).argmax(torch.ones(1, 1, dtype=type_)).tolist() == [best]


@given(
    out_features=st.integers(1, 70),
    in_features=st.integers(1, 70),
    tokens=st.integers(1, 40),
    weight_type=st.sampled_from(KINDS),
    type_=st.sampled_from(KINDS),
    seed=st.integers(0, 999),
)
@settings(deadline=None, derandomize=True, database=None, max_examples=60)
def test_any_size(
    out_features: int,
    in_features: int,
    tokens: int,
    weight_type: torch.dtype,
    type_: torch.dtype,
    seed: int,
) -> None:
    w_OI = random(out_features, in_features, dtype=weight_type, seed=seed)
    x_TI = random(tokens, in_features, dtype=type_, seed=seed + 1)
    assert_product(Panels.of(Dense(w_OI)).matmul(x_TI), x_TI, w_OI)


@pytest.mark.parametrize("columns", [200, 256])
def test_a_token_has_the_same_product_in_any_company(columns: int) -> None:
    """With AMX, columns decide whether its order of sums is used: then for any number of tokens."""
    w_OI, x_TI = (
        random(64, columns, dtype=torch.bfloat16),
        random(40, columns, dtype=torch.bfloat16),
    )
    panels = Panels.of(Dense(w_OI))
    y_TO = panels.matmul(x_TI)
    assert all(torch.equal(panels.matmul(x_TI[t : t + 1])[0], y_TO[t]) for t in range(40))


def test_a_token_has_the_same_product_in_a_long_prompt() -> None:
    """Blocks of columns, with sums kept in memory, are AMX's way with many tokens."""
    w_OI = random(40, 1312, dtype=torch.bfloat16)
    x_TI = random(300, 1312, dtype=torch.bfloat16)
    panels = Panels.of(Dense(w_OI))
    y_TO = panels.matmul(x_TI)
    for begin in range(0, 300, 37):
        assert torch.equal(panels.matmul(x_TI[begin : begin + 1])[0], y_TO[begin])
        assert torch.equal(panels.matmul(x_TI[begin : begin + 20]), y_TO[begin : begin + 20])


@pytest.mark.parametrize("weight_type", KINDS)
def test_sums_of_many_columns_are_as_exact_as_those_of_few(weight_type: torch.dtype) -> None:
    """A chain of 11 008 sums would lose 1.8e-6, torch's products lose 2.8e-7."""
    w_OI = random(20, 11008, dtype=weight_type)
    x_TI = random(18, 11008, dtype=torch.float32)
    panels, exact_TO = Panels.of(Dense(w_OI)), x_TI.double() @ w_OI.double().T
    whole_TO = panels.matmul(x_TI)
    for tokens in (1, 2, 7, 18):
        y_TO = panels.matmul(x_TI[:tokens])
        assert torch.equal(y_TO, whole_TO[:tokens])
        assert (y_TO - exact_TO[:tokens]).norm() <= 5e-7 * exact_TO[:tokens].norm()
    starts_E1 = torch.tensor([0, 18], dtype=torch.int32)
    assert torch.equal(panels.grouped(x_TI, starts_E1), whole_TO)


def test_levels_with_fma_agree_on_normal_numbers(isa: str) -> None:
    w_OI, x_TI = random(64, 1100, dtype=torch.bfloat16), random(9, 1100, dtype=torch.bfloat16)
    if isa in ("portable", "sse4.2") or "avx2" not in _native.available():
        pytest.skip("without FMA, each product is rounded before it is added")
    y_TO = Panels.of(Dense(w_OI)).matmul(x_TI)
    _native.select("avx2")
    assert torch.equal(y_TO, Panels.of(Dense(w_OI)).matmul(x_TI))


def test_size() -> None:
    assert Panels.of(Dense(torch.zeros(17, 3, dtype=torch.bfloat16))).nbytes == 32 * 4 * 2
    assert Panels.of(Dense(torch.zeros(17, 3))).nbytes == 32 * 3 * 4


def test_refuses() -> None:
    assert refuses("bfloat16", "float32", (3, 4)) is None
    for layout, dtype, shape in [
        ("q4_k", "float32", (3, 4)),
        ("float32", "float64", (3, 4)),
        ("float32", "float32", (0, 4)),
    ]:
        assert refuses(layout, dtype, shape)
