"""8-bit integers times activations rounded token by token: equal to the scheme's formula in
integers, at every level, and to the reference in torch.

Suffixes: O rows, I columns, T tokens, E stacked matrices, N rows of x for all of them.
"""

from __future__ import annotations

import pytest
import torch
from test_grouped import starts
from torch import Tensor

from inferno.nn import W8A8
from inferno_cpu import layouts
from inferno_cpu.linear import stack
from inferno_cpu.packed import PackedPanels

pytestmark = pytest.mark.usefixtures("isa")
SHAPES = [(16, 32), (17, 96), (40, 1056), (5, 4096)]
TOKENS = [1, 2, 4, 5, 9, 16, 17, 33, 50]


def matrix(rows: int, columns: int, *, zeros: bool, seed: int = 0) -> W8A8:
    generator = torch.Generator().manual_seed(seed)
    codes_OI = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator)
    scales_O1 = torch.rand(rows, 1, generator=generator) / 100
    zeros_O1 = torch.randint(0, 256, (rows, 1), generator=generator).float() if zeros else None
    return W8A8(codes_OI, scales_O1, zeros_O1, torch.float32)


def activations(tokens: int, columns: int, seed: int = 0) -> Tensor:
    x_TI = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(seed))
    x_TI[:, 7] *= 30  # one large column, as models have
    return x_TI


def formula(weight: W8A8, x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """x_int8 @ w_int8 in integers, times both scales, in float64; and the sum of magnitudes, of the
    codes as stored, that rounding in float32 is measured by."""
    scale_T1 = x_TI.abs().amax(1, keepdim=True) / 127
    x_int_TI = (x_TI * (127 / x_TI.abs().amax(1, keepdim=True))).round().long()
    assert x_int_TI.abs().amax() == 127
    zeros = 128 if weight.zeros is None else weight.zeros.long()
    w_int_OI = weight.data.long() - zeros
    factor_TO = scale_T1.double() * weight.scales[:, 0].double()
    sizes_TO = x_int_TI.abs() @ torch.maximum(weight.data.long(), w_int_OI.abs()).T
    return (x_int_TI @ w_int_OI.T) * factor_TO, sizes_TO * factor_TO


def packed(*weights: W8A8) -> PackedPanels:
    built = stack(*weights)
    assert isinstance(built, PackedPanels)
    return built


@pytest.mark.parametrize("zeros", [False, True])
def test_is_the_formula_in_integers(zeros: bool) -> None:
    for rows, columns in SHAPES:
        weight = matrix(rows, columns, zeros=zeros, seed=rows)
        panels = packed(weight)
        for tokens in TOKENS if columns < 2000 else (1, 18):
            x_TI = activations(tokens, columns, tokens)
            exact_TO, sizes_TO = formula(weight, x_TI)
            bound_TO = 4 * 2.0**-24 * (sizes_TO if zeros else exact_TO.abs())
            error_TO = (panels.matmul(x_TI) - exact_TO).abs()
            assert (error_TO <= bound_TO).all(), (rows, columns, tokens)
            reference_TO = weight.matmul(x_TI)  # sums in float32, of integers
            assert ((reference_TO - exact_TO).abs() <= 1e-6 * sizes_TO).all()


@pytest.mark.parametrize("zeros", [False, True])
def test_a_token_has_the_same_product_in_any_company(zeros: bool) -> None:
    panels, x_TI = packed(matrix(40, 320, zeros=zeros)), activations(40, 320)
    y_TO = panels.matmul(x_TI)
    for count in (1, 3, 7, 17):
        assert torch.equal(panels.matmul(x_TI[5 : 5 + count]), y_TO[5 : 5 + count])


def test_one_large_value_costs_the_others_of_its_token_their_bits() -> None:
    """As the scheme has it: not rounded in groups, which would keep them."""
    weight = matrix(16, 256, zeros=False)
    x_TI = torch.full((1, 256), 0.01)
    x_TI[0, 0] = 127.0
    expected_O = (weight.data[:, 0].double() - 128) * weight.scales[:, 0].double() * 127
    torch.testing.assert_close(packed(weight).matmul(x_TI)[0].double(), expected_O)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("rows", [(16, 48, 32), (5, 20, 33)])
def test_matrices_are_stacked(rows: tuple[int, ...], zeros: bool) -> None:
    weights = [matrix(count, 64, zeros=zeros, seed=count) for count in rows]
    wanted = torch.cat([w.rows(torch.arange(w.shape[0])) for w in weights])
    assert torch.equal(packed(*weights).rows(torch.arange(sum(rows))), wanted)


@pytest.mark.parametrize("zeros", [False, True])
def test_grouped(zeros: bool) -> None:
    counts = [3, 0, 17, 1, 40]
    weights = [matrix(20, 64, zeros=zeros, seed=e) for e in range(len(counts))]
    x_NI = activations(sum(counts), 64)
    y_NO = packed(*weights).grouped(x_NI, starts(counts))
    alone = [packed(w).matmul(x) for w, x in zip(weights, x_NI.split(counts), strict=True)]
    assert torch.equal(y_NO, torch.cat(alone))
    whole = weights[0].concatenate(weights[1:])
    assert whole is not None
    torch.testing.assert_close(whole.grouped(x_NI, starts(counts)), y_NO, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_makes_its_token_nan() -> None:
    weight, x_TI = matrix(16, 64, zeros=True), activations(3, 64)
    x_TI[1, 40] = float("inf")
    x_TI[2] = 0.0
    for y_TO in (packed(weight).matmul(x_TI), weight.matmul(x_TI)):
        assert y_TO[1].isnan().all() and y_TO[0].isfinite().all() and not y_TO[2].any()


def test_sums_that_would_not_fit_are_refused() -> None:
    assert layouts.refuses("w8a8_sym", "bfloat16", (16, 1 << 16)) is None
    assert "columns" in str(layouts.refuses("w8a8_sym", "bfloat16", (16, (1 << 16) + 32)))
    weight = W8A8(torch.full((16, 1 << 16), 255).byte(), torch.ones(16, 1), None, torch.float32)
    x_TI = torch.full((1, 1 << 16), -1.0)
    assert packed(weight).matmul(x_TI)[0, 0] == pytest.approx(-127.0 * (1 << 16))
