"""The sampler against a naive one: one request at a time, float64, a full sort, no state but the
tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from inferno.constraints import Masks
from inferno.errors import RequestError
from inferno.ops.masses import UNIT, floor_share, integer_masses, relative_probabilities
from inferno.ops.reference import TORCH
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.request.validation import validate_request
from inferno.sampling import Sampler, logprobs_of
from inferno.sampling.state import RowState, TokenCounts, uniform
from inferno.testing import alike, trained_logits

VOCAB = 700
"""More than the candidates of a first look, and no multiple of a block."""
_ids = itertools.count()


@frozen
class Limits:
    vocab_size: int = 10
    max_model_len: int = 10
    whole_prompts: bool = False
    images: object = None
    audio: object = None


def make_request(
    *, prompt: Sequence[int] = (1, 2, 3), eos: Sequence[int] = (), **params: Any
) -> Request:
    params.setdefault("max_tokens", None)
    return Request(
        id=str(next(_ids)),
        token_ids=tuple(prompt),
        eos_token_ids=tuple(eos),
        params=SamplingParams(**params),
    )


def draw_once(logits: torch.Tensor, **params: Any) -> int:
    sampler = Sampler(1, len(logits))
    request = make_request(**params)
    sampler.admit(0, request, request.token_ids)
    return sampler.sample(logits[None], [0]).token_ids[0]


def some_logits(
    seed: int, *, rows: int | None = None, vocab: int = VOCAB, scale: float = 3.0
) -> torch.Tensor:
    """Rounded to sixteenths, so that many are equal."""
    shape = (vocab,) if rows is None else (rows, vocab)
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale * 16
    ).round() / 16


# --- the naive sampler ----------------------------------------------------------------------------


def naive_adjusted(logits: torch.Tensor, request: Request, token_ids: Sequence[int]) -> np.ndarray:
    """One request's logits after penalties, bias and min_tokens, token by token as the definitions
    read."""
    params, f32 = request.params, np.float32
    x: np.ndarray = logits.float().numpy().copy()
    output = list(token_ids[len(request.token_ids) :])
    last = params.repeat_last_n
    for token_id in set(
        token_ids if last < 0 else token_ids[len(token_ids) - min(last, len(token_ids)) :]
    ):
        penalty = f32(params.repetition_penalty)
        x[token_id] = x[token_id] / penalty if x[token_id] > 0 else x[token_id] * penalty
    for token_id in set(output):
        x[token_id] -= f32(output.count(token_id)) * f32(params.frequency_penalty) + f32(
            params.presence_penalty
        )
    for token_id, bias in params.logit_bias.items():
        x[token_id] = -np.inf if bias <= -100 else x[token_id] + f32(bias)
    if len(output) < params.min_tokens:
        x[[*request.eos_token_ids, *params.stop_token_ids]] = -np.inf
    return x


def naive_candidates(
    x: np.ndarray, params: SamplingParams
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `top_k` tokens, best first, their weights, and what share of the weight is before
    each."""
    order = np.lexsort((np.arange(len(x)), -x))[: params.top_k if params.top_k > 0 else None]
    with np.errstate(over="ignore", under="ignore"):
        weight = np.exp((x.astype(np.float64) - x.max()) / params.temperature)[order]
    return order, weight, np.concatenate([[0.0], np.cumsum(weight)[:-1]]) / weight.sum()


def naive_distribution(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probability of each token, in the vocabulary's order."""
    order, weight, before = naive_candidates(x, params)
    keep = ((before < params.top_p) | (np.arange(len(order)) == 0)) & (weight >= params.min_p)
    probability = np.zeros(len(x))
    probability[order[keep]] = weight[keep] / weight[keep].sum()
    return probability


def assume_rounding_decides_nothing(x: np.ndarray, params: SamplingParams) -> None:
    _, weight, before = naive_candidates(x, params)
    if params.top_p < 1:
        assume(np.abs(before[1:] - params.top_p).min(initial=1) > 1e-6)
    if 0 < params.min_p < 1:
        assume(np.abs(weight - params.min_p).min() > 1e-6)


def assert_is_a_right_draw(
    token_id: int, logits: torch.Tensor, request: Request, known: Sequence[int], row: RowState
) -> None:
    """Greedy: the first best token. Otherwise the one whose stretch of the CDF holds the uniform
    number."""
    x = naive_adjusted(logits, request, known)
    if request.params.greedy:
        assert token_id == int(x.argmax())
        return
    assume_rounding_decides_nothing(x, request.params)
    probability = naive_distribution(x, request.params)
    assert probability[token_id] > 0
    ordered = request.params.top_p < 1 or 0 < request.params.top_k < len(x)
    order = np.lexsort((np.arange(len(x)), -x)) if ordered else np.arange(len(x))
    cdf = np.cumsum(probability[order])
    u = uniform(row.key, len(known) - len(request.token_ids)) / 2**31
    place = int(np.flatnonzero(order == token_id)[0])
    assert cdf[place] - probability[token_id] - 1e-6 <= u <= cdf[place] + 1e-6


# --- odd combinations -----------------------------------------------------------------------------

token_id_st = st.integers(0, VOCAB - 1)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    some = st.lists(token_id_st, max_size=3, unique=True)
    return make_request(
        prompt=draw(st.lists(token_id_st, min_size=1, max_size=8)),
        eos=draw(some),
        temperature=draw(st.sampled_from([0, 0, 1e-3, 0.7, 1.0, 1.5, 5.0])),
        top_k=draw(st.sampled_from([0, 0, -1, 1, 2, 20, 64, 100, 300, VOCAB - 1, VOCAB, 10**6])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.0, 1e-6, 0.3, 0.9, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.0, -1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.3, 2.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.7])),
        repeat_last_n=draw(st.sampled_from([-1, 0, 1, 2, 5, 100])),
        logit_bias=draw(
            st.dictionaries(
                token_id_st, st.sampled_from([-1000.0, -100.0, -3.5, 0.0, 5.0]), max_size=3
            )
        ),
        stop_token_ids=draw(some),
        min_tokens=draw(st.integers(0, 4)),
        seed=draw(st.integers(-(2**70), 2**70)),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
    )


def logits_at(request: Request, known: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A model: logits that depend on the request's own tokens only."""
    return some_logits(hash((request.token_ids, tuple(known))) % 2**31).to(dtype)


def run_alone(request: Request, steps: int, dtype: torch.dtype) -> tuple[list[int], list[Any]]:
    """The output, each draw checked against the naive sampler."""
    sampler = Sampler(1, VOCAB)
    known, logprobs = list(request.token_ids), []
    sampler.admit(0, request, known)
    for _ in range(steps):
        logits = logits_at(request, known, dtype)
        sampled = sampler.sample(logits[None], [0])
        assert_is_a_right_draw(sampled.token_ids[0], logits, request, known, sampler._rows[0])
        known += sampled.token_ids
        logprobs.append(sampled.logprobs.get(0))
    return known[len(request.token_ids) :], logprobs


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    batch=st.lists(requests(), min_size=1, max_size=6),
    chance=st.randoms(use_true_random=False),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_mixed_batch_gives_what_each_request_gives_alone(
    batch: list[Request], chance: Any, dtype: torch.dtype
) -> None:
    """In any order, some rows waiting, some preempted and admitted again to another row."""
    steps = 6
    expected = [run_alone(request, steps, dtype) for request in batch]
    sampler = Sampler(8, VOCAB)
    known = [list(request.token_ids) for request in batch]
    logprobs: list[list[Any]] = [[] for _ in batch]
    row_of: dict[int, int] = {}
    while unfinished := [
        i for i, request in enumerate(batch) if len(known[i]) < len(request.token_ids) + steps
    ]:
        chance.shuffle(unfinished)
        running = unfinished[: chance.randint(1, len(unfinished))]
        for i in running:
            if i not in row_of or chance.random() < 0.2:
                row_of.pop(i, None)
                row_of[i] = chance.choice([row for row in range(8) if row not in row_of.values()])
                sampler.admit(row_of[i], batch[i], known[i])
        logits = torch.stack([logits_at(batch[i], known[i], dtype) for i in running])
        before = logits.clone()
        sampled = sampler.sample(logits, [row_of[i] for i in running])
        assert torch.equal(logits, before)
        for place, i in enumerate(running):
            known[i].append(sampled.token_ids[place])
            logprobs[i].append(sampled.logprobs.get(place))
    for i, request in enumerate(batch):
        assert known[i][len(request.token_ids) :] == expected[i][0]
        for mine, alone in zip(logprobs[i], expected[i][1], strict=True):
            assert (mine is None) == (alone is None)
            if mine is not None:
                assert [mine.token_id, mine.rank, *(t for t, _ in mine.top)] == [
                    alone.token_id,
                    alone.rank,
                    *(t for t, _ in alone.top),
                ]
                assert mine.logprob == pytest.approx(alone.logprob, abs=1e-5)


@settings(
    deadline=None, max_examples=100, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(requests(), st.lists(st.integers(0, 5), max_size=12))
@torch.inference_mode()
def test_penalties_are_the_naive_ones(request_: Request, output: list[int]) -> None:
    known = [*request_.token_ids, *output]
    sampler = Sampler(3, VOCAB)
    sampler.admit(2, request_, known[: len(request_.token_ids)])
    for position, token_id in enumerate(output):  # as if drawn: the counts move on one by one
        state = sampler._rows[2]
        assert state.generated == position
        sampler._count([2], [state], [token_id])
        state.generated = position + 1
        state._plan_draws()
    logits = some_logits(len(output))
    adjusted = sampler._adjusted(logits[None], torch.tensor([2]), [sampler._rows[2]])[0]
    assert np.array_equal(adjusted.numpy(), naive_adjusted(logits, request_, known))


# --- distributions --------------------------------------------------------------------------------


def chi_square_limit(degrees: int) -> float:
    """Wilson and Hilferty's: exceeded by one right sampler in a million."""
    return degrees * (1 - 2 / (9 * degrees) + 4.75 * math.sqrt(2 / (9 * degrees))) ** 3


@alike
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 2.0, "top_k": 7},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.3, "min_p": 0.1},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 1.0, "logit_bias": {3: 2.0, 5: -100}, "top_p": 0.95},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [24, 600])
def test_draws_follow_the_distribution(params: dict[str, Any], vocab: int) -> None:
    """Half of the draws are one request's at many positions, half many requests' first."""
    logits, draws, together = some_logits(5, vocab=vocab, scale=1.5), 20_000, 1_000
    sampler = Sampler(together, vocab)
    drawn: list[int] = []
    for seed in range(draws // together):
        for row in range(together if seed % 2 else 0):
            request = make_request(seed=seed * together + row, **params)
            sampler.admit(row, request, request.token_ids)
        if seed == 0:
            for row in range(together):
                request = make_request(seed=row, **params)
                sampler.admit(row, request, request.token_ids)
        drawn += sampler.sample(logits.expand(together, -1), range(together)).token_ids
    probability = naive_distribution(
        naive_adjusted(logits, request, request.token_ids), request.params
    )
    count = np.bincount(drawn, minlength=vocab)
    assert count[probability == 0].sum() == 0
    expected = probability * draws
    likely = expected >= 5
    chi_square = ((count - expected)[likely] ** 2 / expected[likely]).sum()
    rest = expected[~likely].sum()
    if rest > 5:
        chi_square += (count[~likely].sum() - rest) ** 2 / rest
    assert chi_square < chi_square_limit(int(likely.sum()) - (rest <= 5))


def test_uniform_numbers_of_near_seeds_and_positions_do_not_resemble_each_other() -> None:
    keys = [
        RowState.of(make_request(seed=seed), 9, torch.device("cpu"), 0).key for seed in range(100)
    ]
    u = np.array([[uniform(key, position) for position in range(100)] for key in keys]) / 2**31
    for neighbour in (u[1:, :].ravel(), u[:, 1:].T.ravel()):
        mate = u[:-1, :].ravel() if neighbour.size == u[1:, :].size else u
        assert abs(np.corrcoef(neighbour, mate)[0, 1]) < 0.05
    assert abs(np.corrcoef(u[:, :-1].T.ravel(), u[:, 1:].T.ravel())[0, 1]) < 0.05
    step = 0x9E3779B97F4A7C15
    shifted = RowState.of(make_request(seed=step), 9, torch.device("cpu"), 0).key
    assert uniform(shifted, 0) != uniform(keys[0], 1)  # no seed continues another's sequence
    assert np.all(np.histogram(u, bins=10, range=(0, 1))[0] > 850)


# --- single parameters ----------------------------------------------------------------------------


def test_all_greedy_is_one_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = some_logits(1, rows=5).bfloat16()
    sampler = Sampler(5, VOCAB)
    for row in range(5):
        request = make_request(temperature=0, top_p=0.5, top_k=3, seed=row)
        sampler.admit(row, request, request.token_ids)
    monkeypatch.setattr(sampler, "_draw", None)  # calling it would fail
    monkeypatch.setattr(TokenCounts, "add", lambda tally, entries: [][0] if entries else None)
    assert sampler.sample(logits, range(5)).token_ids == logits.argmax(-1).tolist()


def test_a_greedy_row_is_an_argmax_again_when_min_tokens_are_reached() -> None:
    logits = torch.zeros(VOCAB)
    logits[9], logits[8] = 2, 1
    sampler = Sampler(1, VOCAB)
    request = make_request(eos=[9], temperature=0, min_tokens=2)
    sampler.admit(0, request, request.token_ids)
    drawn = []
    for _ in range(4):
        plain = sampler._rows[0].is_argmax
        drawn.append((plain, *sampler.sample(logits[None], [0]).token_ids))
    assert drawn == [(False, 8), (False, 8), (True, 9), (True, 9)]


def test_min_tokens_forbids_every_stop_token_and_counts_across_a_preemption() -> None:
    logits = torch.zeros(VOCAB)
    logits[4], logits[5], logits[6] = 9, 8, 7
    request = make_request(
        prompt=[1], eos=[4, VOCAB + 7], stop_token_ids=[5], temperature=0, min_tokens=2
    )
    for output, expected in ([], 6), ([6], 6), ([6, 6], 4):
        sampler = Sampler(1, VOCAB)
        sampler.admit(0, request, [1, *output])
        assert sampler.sample(logits[None], [0]).token_ids == [expected]


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-20])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float) -> None:
    logits = some_logits(3).double().float()
    logits[123] = logits.max() + 0.01
    assert draw_once(logits, temperature=temperature) == 123


def test_an_infinite_temperature_draws_any_token_but_the_forbidden() -> None:
    logits = some_logits(3)
    logits[: VOCAB - 2] = -math.inf
    drawn = {draw_once(logits, temperature=math.inf, seed=seed) for seed in range(40)}
    assert drawn == {VOCAB - 2, VOCAB - 1}


@pytest.mark.parametrize(
    "params", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}], ids=str
)
def test_the_narrowest_choice_is_the_most_likely_token(params: dict[str, Any]) -> None:
    logits = some_logits(7)
    logits[500] = logits.max() + 1
    assert {draw_once(logits, seed=seed, **params) for seed in range(30)} == {500}


def test_equally_likely_tokens_rank_by_id() -> None:
    logits = torch.zeros(VOCAB)
    assert {draw_once(logits, seed=seed, top_k=1) for seed in range(30)} == {0}
    assert {draw_once(logits, seed=seed, top_k=3) for seed in range(60)} == {0, 1, 2}
    assert {draw_once(logits[:10], seed=seed, top_p=0.3) for seed in range(60)} == {0, 1, 2}
    assert {draw_once(logits[:10], seed=seed, top_p=0.5) for seed in range(90)} == set(range(5))


@pytest.mark.parametrize("top_k", [-1, 0, VOCAB, VOCAB + 1, 2**40])
def test_top_k_of_the_whole_vocabulary_is_none(top_k: int) -> None:
    logits = some_logits(2)
    for seed in range(20):
        assert draw_once(logits, seed=seed, top_k=top_k) == draw_once(logits, seed=seed)


@alike
@pytest.mark.parametrize(
    "params", [{"top_p": 0.99}, {"top_k": 200}, {"top_k": 9000}, {"top_p": 0.6}], ids=str
)
def test_more_candidates_change_no_draw(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly flat logits of a large vocabulary need the second look, or the full sort."""
    logits = some_logits(4, vocab=20_000, scale=0.3)
    drawn = [draw_once(logits, seed=seed, **params) for seed in range(20)]
    whole = Sampler._draw
    monkeypatch.setattr(
        Sampler,
        "_draw",
        lambda self, x, rows, states, look_at=0, **more: whole(
            self, x, rows, states, 20_000, **more
        ),
    )
    assert drawn == [draw_once(logits, seed=seed, **params) for seed in range(20)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shares=st.lists(
        st.sampled_from([0.0, 0.002, 0.1, 0.24, 0.26, 0.5, 0.8, 0.99, 1.0]), min_size=1
    ),
    params=st.sampled_from(
        [{"temperature": 0.0}, {}, {"min_p": 0.05}, {"top_k": 7}, {"top_p": 0.9}, {"top_k": 900}]
    ),
    words=st.sampled_from([10, 22, 30]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_mask_draws_what_logits_of_minus_infinity_draw(
    seed: int, shares: list[float], params: dict[str, Any], words: int, dtype: torch.dtype
) -> None:
    """Whether it allows few tokens, most of them, or none; whether it is shorter than the
    vocabulary or longer."""
    rng = np.random.default_rng(seed)
    allowed = np.stack([rng.random(32 * words) < share for share in shares])
    masks = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    logits = some_logits(seed, rows=len(shares)).to(dtype)
    excluded = torch.full(logits.shape, -math.inf)
    for row, bits in zip(excluded, allowed[:, :VOCAB], strict=True):
        row[: len(bits)][torch.from_numpy(bits)] = 0
    drawn = []
    for mask in (True, False):
        sampler = Sampler(len(shares), VOCAB)
        for row in range(len(shares)):
            request = make_request(seed=seed + row, **params)
            sampler.admit(row, request, request.token_ids)
        x = logits if mask else (logits.float() + excluded).to(dtype)
        given_masks = Masks(known=dict(enumerate(masks[:, None])) if mask else {})
        drawn.append(sampler.sample(x, list(range(len(shares))), given_masks).token_ids)
    known = [bits[:VOCAB].any() for bits in allowed]
    assert [t for t, ok in zip(drawn[0], known, strict=True) if ok] == [
        t for t, ok in zip(drawn[1], known, strict=True) if ok
    ]


def test_greedy_rows_are_masked_only_where_the_best_token_is_excluded() -> None:
    """Else an argmax of the logits as they are is all that a step of grammars costs."""
    seen = []

    def argmax(x_BV: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x_BV.shape))
        return TORCH.argmax(x_BV)

    logits = some_logits(3, rows=3)
    best, second = logits.topk(2, dim=-1).indices.T.tolist()
    allowed = np.ones((3, VOCAB + -VOCAB % 32), bool)
    allowed[1, best[1]] = False
    words = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    masks = Masks(known=dict(enumerate(words[:, None])))
    sampler = Sampler(3, VOCAB, ops=evolve(TORCH, argmax=argmax))
    for row in range(3):
        request = make_request(temperature=0.0)
        sampler.admit(row, request, request.token_ids)
    assert sampler.sample(logits, [0, 1, 2], masks).token_ids == [best[0], second[1], best[2]]
    assert seen == [(3, VOCAB), (1, VOCAB)]


def test_greedy_drafts_under_masks_are_verified_in_one_look() -> None:
    logits = some_logits(5, rows=5)
    best, second = logits.topk(2, dim=-1).indices.T.tolist()
    allowed = np.ones((3, VOCAB + -VOCAB % 32), bool)
    allowed[1, best[1]] = False
    masks = Masks(known={0: np.packbits(allowed, axis=1, bitorder="little").view(np.int32)})
    seen = []

    def argmax(x_BV: torch.Tensor) -> torch.Tensor:
        seen.append(len(x_BV))
        return TORCH.argmax(x_BV)

    sampler = Sampler(2, VOCAB, ops=evolve(TORCH, argmax=argmax))
    for row in range(2):
        request = make_request(temperature=0.0)
        sampler.admit(row, request, request.token_ids)
    drafts = [[best[0], second[1]], [second[3]]]
    tokens, _ = sampler.verify(logits, [0, 1], drafts, masks)
    assert tokens == [[best[0], second[1], best[2]], [best[3]]]
    assert seen == [5, 1]


def test_tokens_without_mass_are_not_left_to_the_slow_ways_of_exp() -> None:
    """A CPU's exp is up to 35 times slower where its result is denormal or 0."""
    x_BV = torch.tensor([[0.0, -20.0, -50.0, -90.0, -1e4, -math.inf]])
    best_B1, temperature_B1 = x_BV[:, :1], torch.ones(1, 1)
    assert (relative_probabilities(x_BV, best_B1, temperature_B1) > 1e-30).all()
    masses = integer_masses(x_BV, best_B1, temperature_B1)
    assert masses.tolist() == [[2**40, int(torch.tensor(-20.0).exp() * UNIT), 0, 0, 0, 0]]


def test_logit_bias_forces_and_forbids() -> None:
    logits = some_logits(6)
    best = int(logits.argmax())
    assert draw_once(logits, logit_bias={17: 100}, seed=1) == 17
    assert draw_once(logits, logit_bias={best: -100}, temperature=0) != best
    only = dict.fromkeys(range(VOCAB), -100.0) | {33: 0.0}
    assert {draw_once(logits, logit_bias=only, temperature=5, seed=seed) for seed in range(10)} == {
        33
    }


def test_the_repetition_window_slides() -> None:
    """Logits so close that the penalty alone decides: a window of 2 lets a token return after two
    others."""
    logits = torch.tensor([1.0, 0.9, 0.8, 0.7])
    expected = {0: [0, 0, 0, 0, 0], 1: [0, 1, 0, 1, 0], 2: [0, 1, 2, 0, 1], -1: [0, 1, 2, 0, 0]}
    for last_n, drawn in expected.items():
        sampler = Sampler(1, 4)
        request = make_request(
            prompt=[3], temperature=0, repetition_penalty=2.0, repeat_last_n=last_n
        )
        sampler.admit(0, request, [3])
        assert [sampler.sample(logits[None], [0]).token_ids[0] for _ in range(5)] == drawn, last_n


def test_presence_and_frequency_ignore_the_prompt() -> None:
    logits = torch.tensor([1.0, 0.9, 0.0])
    for penalty in "presence_penalty", "frequency_penalty":
        sampler = Sampler(1, 3)
        penalties: dict[str, Any] = {penalty: 0.5}
        request = make_request(prompt=[0, 0, 0], temperature=0, **penalties)
        sampler.admit(0, request, request.token_ids)
        assert [sampler.sample(logits[None], [0]).token_ids[0] for _ in range(2)] == [0, 1]


def test_a_row_keeps_nothing_of_its_last_request() -> None:
    logits = torch.tensor([1.0, 0.9, 0.0])
    sampler = Sampler(1, 3)
    for _ in range(2):
        request = make_request(
            prompt=[2], temperature=0, presence_penalty=1.0, repetition_penalty=1.5
        )
        sampler.admit(0, request, request.token_ids)
        assert [sampler.sample(logits[None], [0]).token_ids[0] for _ in range(2)] == [0, 1]


def test_counts_take_no_memory_until_a_row_needs_them() -> None:
    sampler = Sampler(4, VOCAB)
    request = make_request(temperature=1.0, seed=0, top_p=0.9)
    sampler.admit(0, request, request.token_ids)
    sampler.sample(some_logits(0, rows=1), [0])
    assert sampler._generated._count_RV is None
    assert sampler._recent._count_RV is None


# --- seeds ----------------------------------------------------------------------------------------


def outputs(request_seed: int | None) -> list[list[int]]:
    sampler = Sampler(2, VOCAB)
    for row in range(2):
        request = make_request(seed=request_seed)
        sampler.admit(row, request, request.token_ids)
    return [
        sampler.sample(some_logits(step, rows=1).expand(2, -1), [0, 1]).token_ids
        for step in range(8)
    ]


def test_requests_without_a_seed_differ() -> None:
    assert outputs(None) != outputs(None)
    assert any(first != second for first, second in outputs(None))


def test_requests_with_the_same_seed_draw_the_same() -> None:
    assert outputs(5) == outputs(5) != outputs(6)
    assert outputs(5) == outputs(5 + 2**64) == outputs(5 - 2**64)
    assert all(first == second for first, second in outputs(5))


@pytest.mark.parametrize("u", [0, 2**31 - 1])
@pytest.mark.parametrize(
    "params", [{}, {"top_k": 9}, {"top_p": 0.9999999}, {"min_p": 1e-9}], ids=str
)
def test_extreme_uniform_numbers_draw_no_impossible_token(
    u: int, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferno.sampling.state.uniform", lambda key, position: u)
    logits = torch.full((VOCAB,), -math.inf)
    logits[[3, 130, 690]] = torch.tensor([0.0, -200.0, 1.0])
    assert draw_once(logits, **params) in {3, 690}


# --- logits that are no numbers -------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "presence_penalty": 1.0},
        {},
        {"top_k": 5},
        {"top_p": 0.5},
        {"top_k": 400, "logprobs": 2},
    ],
    ids=str,
)
def test_broken_logits_change_no_other_row(params: dict[str, Any]) -> None:
    good, bad = some_logits(1), some_logits(2)
    cases = {
        "some NaN": torch.where(torch.arange(VOCAB) == 42, bad, math.nan),
        "all NaN": torch.full((VOCAB,), math.nan),
        "nothing": torch.full((VOCAB,), -math.inf),
        "infinite": torch.where(torch.arange(VOCAB) == 42, math.inf, bad),
    }
    sampler = Sampler(1 + len(cases), VOCAB)
    for row in range(1 + len(cases)):
        request = make_request(seed=11, **params)
        sampler.admit(row, request, request.token_ids)
    sampled = sampler.sample(torch.stack([good, *cases.values()]), range(1 + len(cases)))
    assert sampled.token_ids == [draw_once(good, seed=11, **params), 42, 0, 0, 42]
    assert sampler.broken == {1, 2, 3, 4}
    for allowed in (0, -1):  # one token, or nearly all
        masked = Sampler(1 + len(cases), VOCAB)
        for row in range(1 + len(cases)):
            masked.admit(row, make_request(seed=11, **params), (1, 2))
        words = np.full((1, -(-VOCAB // 32)), allowed, np.int32)
        words[0, 0] = 1 << 7
        rows = range(1 + len(cases))
        masks = Masks(known=dict.fromkeys(rows, words))
        masked.sample(torch.stack([good, *cases.values()]), rows, masks)
        assert {2, 3} <= masked.broken <= {1, 2, 3, 4}, "a token that is masked may be NaN"
    sampler.admit(1, make_request(), [0])
    assert sampler.broken == {2, 3, 4}, "the row has another request"
    assert not any(math.isnan(entry.logprob) for entry in sampled.logprobs.values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_forbids_everything_gets_the_models_own_choice(temperature: float) -> None:
    logits = some_logits(8)
    forbidden = dict.fromkeys(range(VOCAB), -100.0)
    assert draw_once(logits, temperature=temperature, logit_bias=forbidden) == int(logits.argmax())


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.9}], ids=str)
def test_what_a_request_excludes_is_not_broken(params: dict[str, Any]) -> None:
    """Nor what the model excludes, as long as one token is left."""
    logits = some_logits(8, rows=2)
    logits[1, 1:] = -math.inf
    sampler = Sampler(2, VOCAB)
    for row in range(2):
        request = make_request(logit_bias=dict.fromkeys(range(VOCAB), -100.0), **params)
        sampler.admit(row, request, request.token_ids)
    sampler.sample(logits, range(2))
    assert sampler.broken == set()


# --- log-probabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(dtype: torch.dtype) -> None:
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(0)).to(dtype)
    token_ids = list(range(0, 400, 10))
    expected = logits.float().log_softmax(-1)
    for row, entry in enumerate(logprobs_of(logits, token_ids, 5)):
        best = sorted(range(VOCAB), key=lambda i: (-logits[row, i].item(), i))
        assert entry.token_id == token_ids[row]
        assert entry.logprob == pytest.approx(expected[row, token_ids[row]].item(), abs=1e-5)
        assert entry.rank == 1 + int((logits[row] > logits[row, token_ids[row]]).sum())
        assert [p for _, p in entry.top] == pytest.approx(
            expected[row, best[:5]].tolist(), abs=1e-5
        )
        if dtype == torch.float32:
            assert [i for i, _ in entry.top] == best[:5]


@alike
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocab", [49152, 50257, 40])
def test_logprobs_do_not_depend_on_other_rows(vocab: int, threads: int) -> None:
    logits = trained_logits(33, vocab)
    token_ids = [7 * row % vocab for row in range(33)]
    before = torch.get_num_threads()
    alone = [logprobs_of(logits[i : i + 1], token_ids[i : i + 1], 3)[0] for i in range(33)]
    torch.set_num_threads(threads)
    try:
        for rows in (1, 2, 3, 5, 16, 17, 33):
            assert logprobs_of(logits[:rows], token_ids[:rows], 3) == alone[:rows]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("logits", [torch.full((1, 1000), 6e4), trained_logits(2, 1000, peak=1e4)])
def test_logprobs_of_large_logits_are_exact(logits: torch.Tensor) -> None:
    expected = logits.double().log_softmax(-1)
    for row, entry in enumerate(logprobs_of(logits, [77] * len(logits), 1)):
        assert entry.logprob == pytest.approx(expected[row, 77].item(), rel=1e-6)
        assert entry.top[0][1] == pytest.approx(expected[row].max().item(), rel=1e-6)


def test_a_token_that_is_nearly_certain_has_a_logprob_below_zero() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 77] = 30.0
    expected = logits.double().log_softmax(-1)[0, 77].item()
    assert expected < 0
    assert logprobs_of(logits, [77], 0)[0].logprob == pytest.approx(expected, rel=1e-5)


def test_a_draw_does_not_depend_on_other_rows() -> None:
    """With candidates that nearly tie, 20 nats above the rest."""
    logits = torch.cat([trained_logits(9, VOCAB), some_logits(3, rows=8)])
    for params in ({}, {"top_p": 0.9}, {"top_k": 7}, {"min_p": 0.02}):
        alone = [draw_once(row, temperature=0.8, seed=5, **params) for row in logits]
        sampler = Sampler(len(logits), VOCAB)
        for row in range(len(logits)):
            request = make_request(temperature=0.8, seed=5, **params)
            sampler.admit(row, request, request.token_ids)
        assert sampler.sample(logits, range(len(logits))).token_ids == alone


def test_logprobs_are_the_models_own_and_only_for_requests_that_ask() -> None:
    logits = some_logits(9, rows=4)
    sampler = Sampler(4, VOCAB)
    for row, count in enumerate([None, 0, 3, None]):
        request = make_request(temperature=0, logit_bias={50: 100.0}, logprobs=count)
        sampler.admit(row, request, request.token_ids)
    sampled = sampler.sample(logits, [3, 2, 1, 0])
    assert sampled.token_ids == [50] * 4
    assert sorted(sampled.logprobs) == [1, 2]
    assert [len(sampled.logprobs[i].top) for i in (1, 2)] == [3, 0]
    assert sampled.logprobs[1].logprob == pytest.approx(
        logits[1].log_softmax(-1)[50].item(), abs=1e-5
    )
    assert len(logprobs_of(logits[:1, :3], [1], 20)[0].top) == 3


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "request_"),
    [
        ("prompt", make_request(prompt=[0, 10])),
        ("prompt", make_request(prompt=[-1, 3])),
        ("stop_token_ids", make_request(stop_token_ids=[10])),
        ("allowed_token_ids", make_request(allowed_token_ids=[3, 10])),
        ("bad_words", evolve(make_request(), bad_words=((1, 2), (3, 10)))),
        ("logit_bias", make_request(logit_bias={10: 1.0})),
        ("logit_bias", make_request(logit_bias={-1: 1.0})),
        ("logit_bias", make_request(logit_bias={1: math.nan})),
        ("logit_bias", make_request(logit_bias={1: math.inf})),
    ],
)
def test_a_token_the_model_does_not_have_is_refused_by_name(param: str, request_: Request) -> None:
    with pytest.raises(RequestError) as error:
        validate_request(request_, Limits())
    assert error.value.param == param


def test_every_token_the_model_has_is_accepted() -> None:
    good = make_request(prompt=[0, 9], stop_token_ids=[9], logit_bias={0: -math.inf, 9: 100.0})
    validate_request(good, Limits())


def test_integer_shares_are_exact() -> None:
    for part, whole in itertools.product(
        [0, 1, 12345, 2**31 - 1, 2**31], [1, 2**31 - 1, 2**40 + 7, 2**62 + 12345]
    ):
        assert floor_share(torch.tensor(part), torch.tensor(whole)).item() == (part * whole) >> 31


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}])
@pytest.mark.parametrize("bad_row", [0, 1])
def test_drafts_are_verified_up_to_logits_that_are_not_finite(
    bad: float, params: dict[str, Any], bad_row: int
) -> None:
    logits = some_logits(3, rows=3)
    logits[bad_row, 3] = bad
    plain, drafting = Sampler(1, VOCAB), Sampler(1, VOCAB)
    for sampler in (plain, drafting):
        request = make_request(**params)
        sampler.admit(0, request, request.token_ids)
    expected = [plain.sample(row[None], [0]).token_ids[0] for row in logits]
    assert all(0 <= token_id < VOCAB for token_id in expected)
    assert all(0 <= t < VOCAB for row in logits for t in drafting.peek(row[None], [0], 0))
    assert drafting.verify(logits, [0], [expected[:2]])[0] == [expected[: 1 + bad_row]]
    assert plain.broken == drafting.broken == {0}
