"""The reference of W8A8 in torch, against its formula in integers.

Suffixes: O rows, I columns, T tokens, N rows of x for stacked matrices.
"""

from __future__ import annotations

import pytest
import torch

from inferno.errors import CheckpointError
from inferno.nn import W8A8


def matrix(rows: int, columns: int, *, zeros: bool) -> W8A8:
    codes_OI = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    zeros_O1 = torch.randint(100, 150, (rows, 1)).float() if zeros else None
    return W8A8(codes_OI, torch.rand(rows, 1) / 100, zeros_O1, torch.float32)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_integers_times_scales(zeros: bool, dtype: torch.dtype) -> None:
    weight, x_TI = matrix(20, 48, zeros=zeros), torch.randn(5, 48).to(dtype)
    most_T1 = x_TI.float().abs().amax(1, keepdim=True)
    x_int_TI = (x_TI.float() * (127 / most_T1)).round().long()
    w_int_OI = weight.data.long() - (128 if weight.zeros is None else weight.zeros.long())
    exact_TO = (x_int_TI @ w_int_OI.T) * (most_T1.double() / 127) * weight.scales[:, 0].double()
    bias_O = torch.randn(20).to(dtype)
    for bias, expected_TO in ((None, exact_TO), (bias_O, exact_TO + bias_O.double())):
        y_TO = weight.matmul(x_TI, bias)
        assert y_TO.dtype == dtype
        torch.testing.assert_close(y_TO, expected_TO.to(dtype))


def test_stacked_matrices_multiply_their_own_rows() -> None:
    weights, x_NI = [matrix(16, 48, zeros=True) for _ in range(3)], torch.randn(7, 48)
    whole = weights[0].concatenate(weights[1:])
    assert isinstance(whole, W8A8)
    y_NO = whole.grouped(x_NI, torch.tensor([0, 2, 2, 7], dtype=torch.int32))
    expected = [weights[0].matmul(x_NI[:2]), weights[2].matmul(x_NI[2:])]
    torch.testing.assert_close(y_NO, torch.cat(expected))
    assert whole.concatenate([matrix(16, 48, zeros=False)]) is None


def test_a_scale_that_is_not_finite_is_an_error() -> None:
    scales_O1 = torch.tensor([[torch.inf]])
    with pytest.raises(CheckpointError, match="infinite"):
        W8A8(torch.zeros(1, 32, dtype=torch.uint8), scales_O1, None, torch.float32)
