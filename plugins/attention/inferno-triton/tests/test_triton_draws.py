"""Kernels that turn logits into tokens: the tokens of torch's definition, one by one."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from torch import Tensor
from triton_on_cpu import on_cpu

from inferno.ops import draws as reference
from inferno.ops.draws import BEST, Biases, DrawParams, Penalties
from inferno_triton import tokens

LAST = 2**31 - 1
INF, NAN = torch.inf, torch.nan


def params_of(rows: list[tuple[float, float, int, float, int]]) -> DrawParams:
    """Of (temperature, min_p, top_k, top_p, uniform)."""
    temperature, min_p, top_k, top_p, uniform = zip(*rows, strict=True)
    integers = (torch.tensor(each) for each in (top_k, [int(p * 2**31) for p in top_p], uniform))
    return DrawParams(torch.tensor(temperature), torch.tensor(min_p), *integers)


def some_logits(rows: int, width: int, step: float, seed: int = 0) -> Tensor:
    """Multiples of a step, so that many are equal."""
    x_BV = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 4
    return (x_BV / step).round() * step


def assert_same(logits_BV: Tensor, params: DrawParams | None, own_BV: Tensor | None = None) -> None:
    expected = reference.draw(logits_BV, params, own_BV)
    with on_cpu():
        ids = tokens.draw(logits_BV, params, own_BV)
    assert ids.dtype == torch.int64
    assert ids.tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("dtype, step", [(torch.float32, 1e-6), (torch.bfloat16, 0.25)])
def test_every_kind_of_draw(dtype: torch.dtype, step: float) -> None:
    """Rows of all kinds at once, with uniform numbers at both ends and between; a row's spans and
    their tiles are cut off at the vocabulary's end."""
    width = 1300
    kinds = [
        (1.0, 0.0, width, 1.0),
        (0.7, 0.1, width, 1.0),
        (1.0, 0.0, 20, 1.0),
        (5.0, 0.0, 1200, 1.0),
        (1.0, 0.0, width, 0.9),
        (3.0, 0.01, width, 0.999),
        (1.5, 0.3, 40, 0.5),
        (1e-3, 0.0, 5, 0.9),
        (1e30, 0.0, 700, 0.7),
        (1.0, 1.0, width, 0.0),
    ]
    uniforms = itertools.cycle([0, 2**30 + 12345, LAST])
    rows = [(*kind, u) for kind, u in zip(2 * kinds, uniforms, strict=False)]
    rows += [(1.0, 0.0, 20, 0.5, BEST), (1e-30, 0.0, 1, 1.0, LAST)]
    assert_same(some_logits(len(rows), width, step).to(dtype), params_of(rows))


def test_rows_that_are_not_ordinary() -> None:
    """All logits equal; infinities and what is not a number; one token; none that is finite; zeros
    of both signs and subnormal numbers. A view of every second row."""
    width = 600
    x_BV = some_logits(16, width, 0.5)
    x_BV[0:2] = 1.5
    x_BV[2:4, 7::50], x_BV[4:6, ::3], x_BV[6:8] = INF, NAN, -INF
    x_BV[8:10] = -INF
    x_BV[8:10, 99] = -3.0
    x_BV[10:12] = torch.tensor([0.0, -0.0, 1e-42]).repeat(width // 3)
    x_BV[12:14, :590] = -INF
    rows = [(1.0, 0.0, width, 0.5, 2**30), (2.0, 0.0, width, 1.0, LAST)] * 4
    rows[5] = (1.0, 0.0, 200, 1.0, 2**29)
    assert_same(x_BV[::2], params_of(rows))
    assert_same(x_BV[1::2], params_of(rows[::-1]))
    assert_same(x_BV, None)


def test_rows_without_a_finite_logit_take_their_own_best_token() -> None:
    own_BV = some_logits(6, 520, 0.5)
    x_BV = own_BV.clone()
    x_BV[1], x_BV[2, 3], x_BV[3, 5], own_BV[2, 9] = -INF, NAN, INF, INF
    x_BV[5], own_BV[5] = -INF, NAN
    rows = [(1.0, 0.0, 30, 0.9, 2**29)] * 4 + [(1.0, 0.0, 520, 1.0, 5)] * 2
    for params in (params_of(rows), None):
        assert_same(x_BV, params, own_BV.bfloat16())


@pytest.mark.slow
def test_a_row_of_a_large_vocabulary() -> None:
    """Of many spans, and with many candidates: half of the tokens may be kept."""
    rows = [(1.0, 0.0, 80, 0.95, 2**30), (4.0, 0.0, 8_999, 0.9, 2**31 - 10**6)]
    assert_same(some_logits(2, 9_000, 0.125, seed=1).bfloat16(), params_of(rows))


@pytest.mark.filterwarnings("ignore:overflow")  # of the interpreter, as the largest number grows
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_penalties_biases_and_masks(dtype: torch.dtype) -> None:
    """To the last bit, each alone and together; a mask that ends before the vocabulary does."""
    B, width, resident = 3, 1100, 5
    generator = torch.Generator().manual_seed(0)
    logits_BV = some_logits(B, width, 1e-3).to(dtype)
    logits_BV[0, 3], logits_BV[1, 4], logits_BV[2, 5] = INF, NAN, -INF
    recent_RV, generated_RV = (
        torch.randint(-9, 4, (resident, width), generator=generator).clamp(min=0).int()
        for _ in range(2)
    )
    floats = [torch.tensor(each) for each in ([1.3, 1.0, 0.7], [0.31, 0.0, -0.7], [0.1, 0.0, 0.9])]
    rows_B = torch.tensor([4, 0, 2])
    penalties = Penalties(rows_B, recent_RV, generated_RV, *floats)
    biases = Biases(
        torch.tensor([0, 0, 2, 2]), torch.tensor([3, 9, 5, 0]), torch.tensor([-INF, 2.5, 7.0, -1.0])
    )
    words_BW = torch.randint(-(2**31), 2**31, (B, 33), generator=generator).int()
    words_BW[1] = -1
    cases = [
        (penalties, biases, words_BW),
        (penalties, None, None),
        (Penalties(rows_B, None, generated_RV, *floats), None, words_BW),
        (None, biases, None),
    ]
    for given in cases:
        before = logits_BV.clone()
        with on_cpu():
            found_BV = tokens.adjust(logits_BV, *given)
        expected_BV = reference.adjust(logits_BV, *given)
        assert found_BV.dtype == torch.float32 and torch.equal(found_BV, expected_BV)
        assert torch.equal(logits_BV.nan_to_num(), before.nan_to_num())
    assert (found_BV[0, [3, 9]] == torch.tensor([-INF, logits_BV[0, 9].float() + 2.5])).all()
