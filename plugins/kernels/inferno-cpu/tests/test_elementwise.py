"""The native operators against `inferno.ops.reference`, over odd sizes and views."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.ops import reference as ops
from inferno_cpu import _native
from inferno_cpu import elementwise as native

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ULP = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Two units in the last place: a sum taken in another order may round to the neighbour, and its
product once more."""

ROWS = [1, 3, 17, 100]
WIDTHS = [1, 15, 16, 17, 64, 80, 129, 1024]


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(2)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def columns(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows that are slices of longer ones."""
    return draw(shape[0], shape[1] + 7, dtype=dtype, seed=seed)[:, 3 : 3 + shape[1]]


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype and ours.is_contiguous()
    torch.testing.assert_close(ours, theirs, rtol=ULP[ours.dtype], atol=1e-6)
    if ours.dtype != torch.float32:
        assert (ours == theirs).double().mean() > 0.95, "more than now and then a neighbour"


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: torch.dtype) -> None:
    for T in ROWS:
        for D in WIDTHS:
            x_TD, delta_TD = columns(T, D, dtype=dtype), columns(T, D, dtype=dtype, seed=1)
            for weight_D in (draw(D, dtype=dtype, seed=2), draw(D, dtype=torch.float32, seed=2)):
                close(native.rms_norm(x_TD, weight_D, 1e-6), ops.rms_norm(x_TD, weight_D, 1e-6))
                sum_TD, y_TD = native.add_rms_norm(x_TD, delta_TD, weight_D, 1e-5)
                assert torch.equal(sum_TD, x_TD + delta_TD)
                close(y_TD, ops.add_rms_norm(x_TD, delta_TD, weight_D, 1e-5)[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_layer_norm(dtype: torch.dtype) -> None:
    for T in ROWS:
        for D in WIDTHS:
            x_TD, other_TD = columns(T, D, dtype=dtype), columns(T, D, dtype=dtype, seed=1) + 3
            weight_D, bias_D = draw(D, dtype=dtype, seed=2), draw(D, dtype=dtype, seed=3)
            for residual, weight, bias in (
                (other_TD, weight_D, bias_D),
                (other_TD, weight_D.float(), bias_D.float()),
                (None, weight_D, None),
            ):
                sum_TD = x_TD.double() if residual is None else x_TD.double() + other_TD.double()
                shift = None if bias is None else bias.double()
                exact_TD = F.layer_norm(sum_TD, (D,), weight.double(), shift, 1e-5)
                ours_TD = native.add_layer_norm(x_TD, residual, weight, bias, 1e-5)
                assert ours_TD.dtype == dtype and ours_TD.is_contiguous()
                error_TD = (ours_TD.double() - exact_TD).abs()
                assert (error_TD <= ULP[dtype] / 4 * exact_TD.abs() + 3e-6).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_rounded_to_the_nearest_even(dtype: torch.dtype) -> None:
    """As torch rounds them: ties, infinity and NaN included."""
    inf, nan = torch.inf, torch.nan
    ulp = torch.finfo(dtype).eps
    x_D = torch.tensor([1.0, 1.0 + ulp, -1.0, 1.0, -1.0, inf, -inf, nan, 0.0, -0.0] * 13)
    delta_D = torch.tensor(
        [ulp / 2, ulp / 2, ulp / 2, -ulp / 4, -ulp / 4, 1.0, 1.0, 1.0, nan, -0.0] * 13
    )
    x_TD, delta_TD = x_D.to(dtype)[None], delta_D.to(dtype)[None]
    sum_TD, _ = native.add_rms_norm(x_TD, delta_TD, torch.ones(x_TD.shape[1]), 1e-6)
    expected_TD = x_TD + delta_TD
    assert torch.equal(sum_TD.isnan(), expected_TD.isnan())
    assert torch.equal(sum_TD.nan_to_num(7.0), expected_TD.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3])
def test_norm_and_rope_of_heads_within_a_qkv_matrix(dtype: torch.dtype, heads: int) -> None:
    for T in ROWS:
        for C, E in [
            (16, 8),
            (64, 32),
            (80, 40),
            (96, 12),
            (96, 40),
            (128, 64),
            (256, 32),
            (600, 300),
            (16, 1),
        ]:
            x_THC = draw(T, 2 * heads * C + 16, dtype=dtype)[:, 16 : 16 + heads * C].unflatten(
                1, (-1, C)
            )
            weight_C = draw(C, dtype=dtype, seed=1)
            angle_TE = draw(T, E, dtype=torch.float32, seed=2) * 10
            cos_TE, sin_TE = angle_TE.cos(), angle_TE.sin()
            close(native.rms_norm(x_THC, weight_C, 1e-6), ops.rms_norm(x_THC, weight_C, 1e-6))
            for weight, interleaved in (
                (None, False),
                (weight_C, False),
                (weight_C.float(), True),
                (None, True),
            ):
                ours = native.norm_rope(x_THC, weight, 1e-6, cos_TE, sin_TE, interleaved)
                theirs = ops.norm_rope(x_THC, weight, 1e-6, cos_TE, sin_TE, interleaved)
                if dtype == torch.float32:
                    torch.testing.assert_close(
                        ours, theirs, rtol=1e-5, atol=1e-5
                    )  # differences of products
                # rotation carries a rounding difference of the norm into two elements
                else:
                    torch.testing.assert_close(ours, theirs, rtol=ULP[dtype], atol=4 * ULP[dtype])
                    assert (ours == theirs).double().mean() > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_of_halves_of_one_matrix(dtype: torch.dtype) -> None:
    for T in ROWS:
        for width in (*WIDTHS, 3000):
            gate_TI, up_TI = torch.split(draw(T, 2 * width, dtype=dtype) * 5, width, 1)
            close(native.silu_mul(gate_TI, up_TI), ops.silu_mul(gate_TI, up_TI))
    extremes = torch.tensor(
        [[-torch.inf, torch.inf, torch.nan, -200.0, 200.0, -0.0, 0.0]], dtype=dtype
    )
    ours = native.silu_mul(extremes, torch.ones_like(extremes))[0].float()
    assert ours[1].isinf() and ours[2].isnan()
    assert ours[3:].tolist() == pytest.approx([0.0, 200.0, 0.0, 0.0], abs=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(dtype: torch.dtype) -> None:
    for T in ROWS:
        for width in (*WIDTHS, 3000):
            x_TI = draw(T, 2 * width, dtype=dtype)[:, :width] * 5
            exact_TI = F.gelu(x_TI.double())
            ours_TI = native.gelu(x_TI)
            assert ours_TI.data_ptr() == x_TI.data_ptr(), "in place"
            error_TI = (ours_TI.double() - exact_TI).abs()
            assert (error_TI <= ULP[dtype] * exact_TI.abs() + 1e-6).all()
    assert (
        native.gelu(torch.tensor([[torch.nan, torch.inf, -torch.inf]], dtype=dtype)).isnan().all()
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax(dtype: torch.dtype) -> None:
    for T in ROWS:
        for V in (*WIDTHS, 4096, 4097, 20_001):
            logits_TV = columns(T, V, dtype=dtype)
            assert torch.equal(native.argmax(logits_TV), ops.argmax(logits_TV))
    last = torch.zeros(2, 9001, dtype=dtype)
    last[0, -1] = 1
    assert native.argmax(last).tolist() == [9000, 0], (
        "the last column counts; of equals the first wins"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax_of_nan_and_infinity(dtype: torch.dtype) -> None:
    nan, inf = torch.nan, torch.inf
    rows = [
        [nan, 1, 2],
        [nan, nan, nan],
        [-inf, -inf, -inf],
        [-inf, nan, -5],
        [1, inf, 2],
        [3, nan, 3],
        [3, -inf, 3],
    ]
    for lead in (0, 5000):  # in the first piece of a row, and in a later one
        logits_TV = torch.cat([torch.full((len(rows), lead), -inf), torch.tensor(rows)], 1).to(
            dtype
        )
        expected = [lead + i if i >= 0 else -1 for i in (-1, -1, -1, -1, -1, -1, 0)]
        assert native.argmax(logits_TV).tolist() == expected


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(rows=st.integers(1, 5), width=st.integers(1, 9000), data=st.data())
def test_argmax_is_the_first_of_the_largest(rows: int, width: int, data: st.DataObject) -> None:
    logits_TV = torch.randint(
        -3, 3, (rows, width), generator=torch.Generator().manual_seed(width)
    ).float()
    for _ in range(4):
        logits_TV[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, width - 1))] = 3.0
    expected = [row.index(max(row)) for row in logits_TV.tolist()]
    for dtype in DTYPES:
        assert native.argmax(logits_TV.to(dtype)).tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype: torch.dtype) -> None:
    for D in WIDTHS:
        table_VD = draw(50, D, dtype=dtype)
        ids_T = torch.randint(0, 50, (33,), generator=torch.Generator().manual_seed(D))
        assert torch.equal(native.gather(table_VD, ids_T), ops.gather(table_VD, ids_T))
    assert (native.gather(table_VD, torch.tensor([-1, 50, 2**40])) == 0).all(), (
        "an id out of range reads nothing"
    )


def test_last_dimensions_that_are_strided() -> None:
    x_TD, weight_D = draw(64, 5, dtype=torch.float32).T, draw(64, dtype=torch.float32, seed=1)
    close(native.rms_norm(x_TD, weight_D, 1e-6), ops.rms_norm(x_TD, weight_D, 1e-6))
    close(native.silu_mul(x_TD, x_TD), ops.silu_mul(x_TD, x_TD))
    assert torch.equal(native.argmax(x_TD), ops.argmax(x_TD))
