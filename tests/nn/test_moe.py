"""Mixtures of experts against a loop over tokens.

Suffixes: T tokens, D hidden, E experts, K experts of a token, I inner width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Shard
from inferno.nn import Dense, Experts, Finalize, Router, Routing, Weight
from inferno.nn.grouped import Separate
from inferno.ops import reference as ops

HIDDEN, INNER, EXPERTS = 32, 24, 5


class Rows(Weight):
    """A weight that has rows and nothing else: what a packed layout offers at least."""

    def __init__(self, weight_OI: Tensor) -> None:
        super().__init__()
        self.weight_OI = weight_OI
        self.shape = (weight_OI.shape[0], weight_OI.shape[1])

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.weight_OI[ids_T]

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return F.linear(x_TI, self.weight_OI, bias_O)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        if not all(isinstance(w, Rows) for w in others):
            return None
        return Rows(
            torch.cat([self.weight_OI, *(w.weight_OI for w in others if isinstance(w, Rows))])
        )


class Loner(Rows):
    """A layout that does not stack."""

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        return None


def stack(weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False) -> Weight | None:
    assert grouped or len(weights) == 1, "experts are multiplied group by group if they stack"
    return weights[0].concatenate(weights[1:])


def experts_of(
    kinds: Sequence[type[Weight]], *, bias: bool = False
) -> tuple[Experts, list[list[Tensor]]]:
    """Fused experts, and the matrices and biases of each. Their gates, ups and downs are of these
    kinds."""
    torch.manual_seed(0)
    experts = Experts(EXPERTS, HIDDEN, INNER, bias=bias)
    numbers = []
    for expert in range(EXPERTS):
        tensors = []
        for name, kind in zip(("gate_proj", "up_proj", "down_proj"), kinds, strict=True):
            linear = experts.get_submodule(f"{expert}.{name}")
            weight_OI = torch.randn(linear.weight.shape) / 5  # type: ignore[arg-type]
            tensors.append(weight_OI)
            linear.weight = kind(weight_OI)
            if bias:
                tensors.append(torch.nn.init.normal_(linear.bias))  # type: ignore[arg-type]
        numbers.append(tensors)
    experts.requires_grad_(False).finalize(Finalize(stack=stack))
    return experts, numbers


def naive(x_D: Tensor, own: list[Tensor]) -> Tensor:
    if len(own) == 3:
        gate, up, down = own
        return F.linear(F.silu(F.linear(x_D, gate)) * F.linear(x_D, up), down)
    gate, gate_bias, up, up_bias, down, down_bias = own
    return F.linear(
        F.silu(F.linear(x_D, gate, gate_bias)) * F.linear(x_D, up, up_bias), down, down_bias
    )


def route(
    logits_TE: Tensor, routing: Routing, correction_E: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of a router whose logits are given."""
    count = logits_TE.shape[1]
    router = Router(count, count, routing, correction=correction_E is not None).requires_grad_(
        False
    )
    router.weight.copy_(torch.eye(count))
    if router.e_score_correction_bias is not None and correction_E is not None:
        router.e_score_correction_bias.copy_(correction_E)
    experts_TK, weights_TK = router(logits_TE)
    return experts_TK, weights_TK


@pytest.mark.parametrize("kinds", [(Dense,) * 3, (Rows,) * 3, (Loner,) * 3, (Rows, Dense, Rows)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 40])
def test_experts_equal_a_loop_over_tokens(
    kinds: Sequence[type[Weight]], bias: bool, num_tokens: int
) -> None:
    """Few rows and many, weights that stack and such that do not; expert 4 has no token."""
    experts, numbers = experts_of(kinds, bias=bias)
    assert any(isinstance(module, Separate) for module in experts.modules()) == (Loner in kinds)
    x_TD = torch.randn(num_tokens, HIDDEN)
    experts_TK = (
        torch.stack([torch.randperm(EXPERTS - 1)[:3] for _ in range(num_tokens)])
        if num_tokens
        else torch.empty(0, 3)
    )
    weights_TK = torch.rand(num_tokens, 3)
    y_TD = experts(x_TD, experts_TK.long(), weights_TK)
    for t in range(num_tokens):
        pairs = zip(weights_TK[t], experts_TK[t].tolist(), strict=True)
        torch.testing.assert_close(
            y_TD[t], sum(w * naive(x_TD[t], numbers[e]) for w, e in pairs), rtol=1e-4, atol=1e-4
        )
    assert y_TD.shape == x_TD.shape


class Garbled(Rows):
    """What is in rows that are of no matrix is not finite, as in memory that is used again."""

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_NO = super().grouped(x_NI, starts_E1, bias_O)
        y_NO[int(starts_E1[-1]) :] = torch.nan
        return y_NO

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        whole = super().concatenate(others)
        return Garbled(whole.weight_OI) if isinstance(whole, Rows) else None


@pytest.mark.parametrize("kind", [Dense, Garbled, Loner])
@pytest.mark.parametrize("num_tokens", [1, 3, 80])
@pytest.mark.parametrize("ranks", [2, 5])
def test_experts_that_are_dealt_out_sum_to_all(
    kind: type[Weight], num_tokens: int, ranks: int
) -> None:
    """A rank with uneven parts, and one to which a token sends nothing."""
    whole, numbers = experts_of((kind,) * 3, bias=True)
    x_TD, weights_TK = torch.randn(num_tokens, HIDDEN), torch.rand(num_tokens, 2)
    experts_TK = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(num_tokens)])
    total_TD = torch.zeros(num_tokens, HIDDEN)
    for rank in range(ranks):
        shard = Shard(rank=rank, ranks=ranks, experts=True)
        part = Experts(EXPERTS, HIDDEN, INNER, bias=True)
        part.divide(shard)
        part.drop_others()
        for expert in part.own:
            for name, (weight_OI, bias_O) in zip(
                ("gate_proj", "up_proj", "down_proj"),
                zip(numbers[expert][::2], numbers[expert][1::2], strict=True),
                strict=True,
            ):
                linear: Any = part.get_submodule(f"{expert}.{name}")
                linear.weight, linear.bias = kind(weight_OI), nn.Parameter(bias_O)
        part.requires_grad_(False).finalize(Finalize(stack=stack))
        own_TD = part(x_TD, experts_TK, weights_TK)
        others_T = ~torch.isin(experts_TK, torch.tensor([*part.own])).any(-1)
        assert not own_TD[others_T].any(), "nothing of what other ranks have"
        total_TD += own_TD
    torch.testing.assert_close(total_TD, whole(x_TD, experts_TK, weights_TK), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [24, 20, 7])
def test_rows_of_any_width_are_multiplied(columns: int) -> None:
    """torch's grouped product wants rows of whole 16 bytes."""
    weight_OI, x_NI = torch.randn(3 * 4, columns), torch.randn(6, columns)
    y_NO = Dense(weight_OI).grouped(x_NI, torch.tensor([0, 2, 2, 6], dtype=torch.int32))
    want = torch.cat([x_NI[:2] @ weight_OI[:4].T, x_NI[2:] @ weight_OI[8:].T])
    torch.testing.assert_close(y_NO, want)


def test_softmax_over_all_then_the_best() -> None:
    logits_TE = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    scores = logits_TE.softmax(-1)[0]
    experts_TK, weights_TK = route(logits_TE, Routing(top_k=2))
    assert experts_TK.tolist() == [[1, 2]]
    torch.testing.assert_close(weights_TK[0], scores[[1, 2]])
    normed = route(logits_TE, Routing(top_k=2, normalize=True, scale=2.5))[1]
    torch.testing.assert_close(normed[0], 2.5 * scores[[1, 2]] / scores[[1, 2]].sum())


def test_a_correction_picks_and_does_not_weigh() -> None:
    logits_TE = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    routing = Routing(top_k=2, scoring="sigmoid")
    experts_TK, weights_TK = route(logits_TE, routing, torch.tensor([0.0, 0.0, 0.0, 5.0]))
    assert experts_TK.tolist() == [[3, 1]]
    torch.testing.assert_close(weights_TK[0], logits_TE.sigmoid()[0, [3, 1]])


@pytest.mark.parametrize(("score", "groups"), [("max", {0, 2}), ("top2", {1, 2})])
def test_groups_limit_the_choice(score: str, groups: set[int]) -> None:
    """Group 0 has the best expert, group 1 the better two."""
    logits_TE = torch.tensor([[3.0, -9.0, 2.0, 1.9, 2.9, 2.8]])
    routing = Routing(top_k=3, scoring="sigmoid", num_groups=3, top_groups=2, group_score=score)  # type: ignore[arg-type]
    experts_TK, _ = route(logits_TE, routing)
    assert {e // 2 for e in experts_TK[0].tolist()} == groups


def test_a_group_of_one_expert_is_worth_its_score() -> None:
    routing = Routing(top_k=2, scoring="sigmoid", num_groups=4, top_groups=2, group_score="top2")
    router = Router(4, 4, routing)
    router.weight.data = torch.eye(4)
    assert set(router(torch.tensor([[0.1, 3.0, 0.2, 2.0]]))[0][0].tolist()) == {1, 3}


@pytest.mark.parametrize("below", [0.0, -40.0, -46.0, -60.0, -200.0])
def test_weights_where_no_expert_scores_are_those_of_the_models_code(below: float) -> None:
    """DeepSeek's and GLM's add 1e-20 to the sum of sigmoids: logits below -46 get no weight."""
    logits_TE = torch.tensor([[0.5, 1.0, -2.0, 3.0], [0.0, 0.0, 0.0, 0.0]]) + below
    experts_TK = logits_TE.topk(2).indices
    scores_TK = logits_TE.double().sigmoid().gather(1, experts_TK)
    wanted = scores_TK / (scores_TK.sum(-1, keepdim=True) + 1e-20)
    weights_TK = ops.weights(logits_TE.sigmoid(), experts_TK, True, 1.0)
    torch.testing.assert_close(weights_TK.double(), wanted, rtol=1e-5, atol=1e-7)


def test_a_router_computes_in_float32() -> None:
    router = Router(HIDDEN, EXPERTS, Routing(top_k=2), correction=True).requires_grad_(False)
    assert set(router.keep_fp32) == {"weight", "bias", "e_score_correction_bias"}
    for param in router.parameters():
        torch.nn.init.normal_(param)
    x_TD = torch.randn(4, HIDDEN).bfloat16()
    experts_TK, weights_TK = router(x_TD)
    want = ops.route(
        x_TD.float(), router.weight, None, router.e_score_correction_bias, 2, False, False, 1.0
    )
    assert (
        torch.equal(experts_TK, want[0])
        and torch.equal(weights_TK, want[1])
        and weights_TK.dtype == torch.float32
    )
