"""Routing against torch.

Suffixes: T tokens, D hidden, E experts, K experts of a token, N pairs (T · K).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferno.testing import alike
from inferno_cpu import _native
from inferno_cpu.experts import combine, dispatch, route

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [
    (1, 64, 8, 2),
    (3, 33, 5, 5),
    (17, 100, 128, 8),
    (2, 2048, 128, 8),
    (600, 20, 30, 4),
    (70, 64, 1, 1),
    (4, 16, 300, 33),
]
"""T, D, E, K: fewer experts than lanes, not divisible by them, one expert, more tokens than are
routed at a time."""


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(3)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def scores_of(
    x_TD: Tensor,
    weight_ED: Tensor,
    bias_E: Tensor | None,
    correction_E: Tensor | None,
    sigmoid: bool,
) -> tuple[Tensor, Tensor]:
    """Return the scores of all experts in float64: for the weights, and for the choice."""
    logits_TE = x_TD.double() @ weight_ED.double().T
    if bias_E is not None:
        logits_TE = logits_TE + bias_E
    scores_TE = logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)
    return scores_TE, scores_TE if correction_E is None else scores_TE + correction_E


@alike
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_route(dtype: torch.dtype, sigmoid: bool, normalize: bool) -> None:
    for tokens, width, count, top_k in SIZES:
        x_TD = draw(tokens, width + 7, dtype=dtype)[:, 3 : 3 + width]
        weight_ED = draw(count, width, seed=1) / width**0.5
        bias, correction = draw(count, seed=2), draw(count, seed=3)
        for bias_E, correction_E in (
            (None, None),
            (bias, None),
            (None, correction),
            (bias, correction),
        ):
            experts_TK, weights_TK = route(
                x_TD, weight_ED, bias_E, correction_E, top_k, sigmoid, normalize, 2.5
            )
            scores_TE, choice_TE = scores_of(x_TD, weight_ED, bias_E, correction_E, sigmoid)
            # Not by id: two scores that differ in the last place may be swapped.
            best_TK = choice_TE.topk(top_k).values
            torch.testing.assert_close(
                choice_TE.gather(1, experts_TK), best_TK, rtol=1e-5, atol=1e-6
            )
            assert all(len(set(row)) == top_k for row in experts_TK.tolist())
            expected_TK = scores_TE.gather(1, experts_TK)
            if normalize:
                expected_TK = expected_TK / expected_TK.sum(-1, keepdim=True)
            torch.testing.assert_close(weights_TK.double(), expected_TK * 2.5, rtol=2e-5, atol=1e-6)


def test_of_equals_the_lowest_expert_comes_first() -> None:
    weight_ED = torch.zeros(40, 16)
    weight_ED[[7, 20, 39]] = 1.0
    assert route(torch.ones(1, 16), weight_ED, None, None, 5, False, True, 1.0)[0].tolist() == [
        [7, 20, 39, 0, 1]
    ]


def test_scores_that_vanish() -> None:
    """Weights of experts with a probability near 0 are not NaN, and sum to at most 1."""
    experts_TK, weights_TK = route(
        torch.ones(1, 16), torch.zeros(20, 16), torch.full((20,), -500.0), None, 4, True, True, 1.0
    )
    assert (
        experts_TK.tolist() == [[0, 1, 2, 3]]
        and weights_TK.isfinite().all()
        and weights_TK.sum() <= 1.001
    )
    bias_E = torch.full((20,), -300.0)
    bias_E[11] = 300.0
    experts_TK, weights_TK = route(
        torch.ones(1, 16), torch.zeros(20, 16), bias_E, None, 2, False, True, 1.0
    )
    assert experts_TK[0, 0] == 11 and weights_TK[0].tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_token_that_is_not_finite_has_some_experts_and_no_weights(bad: float) -> None:
    x_TD, weight_ED = draw(3, 64), draw(20, 64, seed=1)
    clean = route(x_TD, weight_ED, None, None, 4, False, True, 1.0)
    x_TD[1, 5] = bad
    experts_TK, weights_TK = route(x_TD, weight_ED, None, None, 4, False, True, 1.0)
    assert experts_TK[1].tolist() == [0, 1, 2, 3] and weights_TK[1].isnan().all()
    for whole, now in zip(clean, (experts_TK, weights_TK), strict=True):
        assert torch.equal(whole[[0, 2]], now[[0, 2]])


@pytest.mark.parametrize(
    "tokens, count, top_k", [(0, 4, 2), (1, 1, 1), (1, 128, 8), (50, 7, 3), (2000, 128, 8)]
)
def test_dispatch(tokens: int, count: int, top_k: int) -> None:
    experts_TK = (
        torch.rand(tokens, count, generator=torch.Generator().manual_seed(0)).topk(top_k).indices
    )
    tokens_N, starts_E1, places_TK = dispatch(experts_TK, count)
    sorted_N, order_N = experts_TK.flatten().sort(stable=True)
    assert torch.equal(
        starts_E1, torch.searchsorted(sorted_N, torch.arange(count + 1), out_int32=True)
    )
    assert torch.equal(tokens_N, order_N // top_k)
    assert torch.equal(places_TK.flatten()[order_N], torch.arange(tokens * top_k))


@pytest.mark.parametrize("expert", [-1, 4, 2**40])
def test_an_expert_that_is_not_there(expert: int) -> None:
    with pytest.raises(IndexError):
        dispatch(torch.tensor([[0, expert]]), 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 16, 100, 2049])
def test_combine(dtype: torch.dtype, width: int) -> None:
    for tokens, top_k in ((0, 2), (1, 8), (5, 1), (33, 3)):
        y_ND, weights_TK = draw(tokens * top_k, width, dtype=dtype), draw(tokens, top_k, seed=1)
        places_TK = torch.randperm(tokens * top_k, generator=torch.Generator().manual_seed(1)).view(
            tokens, top_k
        )
        out_TD = combine(y_ND, places_TK, weights_TK)
        exact_TD = (
            y_ND[places_TK.flatten()].view(tokens, top_k, width).double() * weights_TK[..., None]
        ).sum(1)
        assert out_TD.dtype == dtype
        torch.testing.assert_close(
            out_TD.double(), exact_TD, rtol=torch.finfo(dtype).eps, atol=1e-5
        )


def test_a_recorded_step_routes_anew() -> None:
    x_TD, weight_ED, y_ND = draw(4, 64), draw(16, 64, seed=1), draw(8, 64, seed=2)
    with _native.Recording() as recording:
        experts_TK, weights_TK = route(x_TD, weight_ED, None, None, 2, False, True, 1.0)
        tokens_N, starts_E1, places_TK = dispatch(experts_TK, 16)
        out_TD = combine(y_ND, places_TK, weights_TK)
    before = experts_TK.clone()
    x_TD.copy_(draw(4, 64, seed=5))
    recording.replay()
    assert not torch.equal(before, experts_TK)
    expected = dispatch(route(x_TD, weight_ED, None, None, 2, False, True, 1.0)[0], 16)
    assert all(
        torch.equal(a, b) for a, b in zip(expected, (tokens_N, starts_E1, places_TK), strict=True)
    )
    assert len(recording) == 3 and out_TD.shape == (4, 64)
