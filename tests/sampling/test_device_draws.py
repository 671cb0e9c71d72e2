"""Draws that wait for nothing are the draws of the sampler, token for token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling.test_sampler import VOCAB, logits_at, make_request, requests, some_logits

from inferno.constraints import Masks
from inferno.constraints.masks import asks_first
from inferno.ops.draws import adjust, draw
from inferno.ops.order import Ranks
from inferno.ops.reference import TORCH, Ops
from inferno.request.requests import Request
from inferno.sampling import Sampler
from inferno.sampling.draw import sort_best
from inferno.sampling.sampler import Drawn
from inferno.testing.lint import Lint

TOGETHER = evolve(TORCH, draw=lambda *given: draw(*given), adjust=lambda *given: adjust(*given))
"""As a kernel provider offers them: every row of a step is drawn by one call."""

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "top_p": {"temperature": 1.5, "top_p": 0.95},
    "all of them": {"temperature": 2.0, "top_k": 300, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.8, "frequency_penalty": 0.5, "presence_penalty": -0.2},
    "repetition": {"temperature": 0, "repetition_penalty": 1.3},
    "bias": {"temperature": 0.5, "logit_bias": {3: 5.0, 4: -100.0}},
    "min_tokens": {"temperature": 1.0, "min_tokens": 3, "stop_token_ids": (5, 6)},
}


def mask_of(share: float, seed: int) -> np.ndarray:
    """A mask (1, W) that allows about this share of the tokens, at least one."""
    allowed = np.random.default_rng(seed).random(-(-VOCAB // 32) * 32) < share
    allowed[seed % VOCAB], allowed[VOCAB:] = True, False
    return np.packbits(allowed, bitorder="little").view(np.int32)[None]


def waiting(request: Request) -> bool:
    params = request.params
    limited = params.repetition_penalty != 1 and params.repeat_last_n > 0
    return limited or params.logprobs is not None


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    batch=st.lists(requests(), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    spoiled=st.sampled_from([None, None, float("nan"), float("inf"), -float("inf")]),
    ops=st.sampled_from([TORCH, TOGETHER]),
    masked=st.sampled_from([0.0, 0.0, 0.01, 0.6]),
)
def test_a_batch_gives_what_the_sampler_gives(
    batch: list[Request], dtype: torch.dtype, spoiled: float | None, ops: Ops, masked: float
) -> None:
    """Where logits are broken as well. Some of a row's tokens are drawn by either."""
    usual, device = Sampler(8, VOCAB), Sampler(8, VOCAB, ops=ops)
    known = [list(request.token_ids) for request in batch]
    rows = [7 - i for i in range(len(batch))]
    params_of = {row: request.params for row, request in zip(rows, batch, strict=True)}
    for sampler in (usual, device):
        for row, request in zip(rows, batch, strict=True):
            sampler.admit(row, request, request.token_ids)
    assert device.waits(rows) == any(waiting(request) for request in batch)
    plain = [i for i, request in enumerate(batch) if not waiting(request)]
    for step in range(6):
        some = plain if step != 3 else range(len(batch))
        if not some:
            continue
        logits = torch.stack([logits_at(batch[i], known[i], dtype) for i in some])
        if spoiled is not None and step % 2:
            logits[0, 5:] = spoiled
            logits[-1] = spoiled
        before, at = logits.clone(), [rows[i] for i in some]
        # Few or many tokens are allowed, in every second row.
        by_row = {row: mask_of(masked, row + step) for row in at[::2]} if masked else {}
        asking = [row for row in by_row if asks_first(params_of[row])]
        masks = Masks(known=by_row, asking=asking)
        expected = usual.sample(logits, at, masks).token_ids
        draw_on = device.sample if step == 3 else device.start
        drawn = draw_on(logits, at, masks)
        tokens = drawn.token_ids if isinstance(drawn, Drawn) else drawn[0]
        assert torch.equal(logits.nan_to_num(), before.nan_to_num())
        assert list(map(int, tokens)) == expected
        for i, token_id in zip(some, expected, strict=True):
            known[i].append(token_id)


@pytest.mark.parametrize("ops", [TORCH, TOGETHER], ids=["by kind", "together"])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_no_draw_exchanges_values_with_the_host(kind: str, ops: Ops) -> None:
    """Beside greedy rows, and after a token whose counts matter."""
    sampler, lint = Sampler(6, 4096, ops=ops), Lint()
    for row in range(6):
        params = KINDS[kind] if row % 3 else {"temperature": 0}
        sampler.admit(row, make_request(seed=row, **params), (1, 2, 3))
    rows = [4, 0, 1, 5]
    first, _ = sampler.start(some_logits(0, rows=4, vocab=4096), rows)  # makes its buffers
    with lint:
        ids, _ = sampler.start(LOGITS[1], rows)
    assert lint.found == [] and lint.count > 3
    assert first.shape == ids.shape == (4,) and bool((ids >= 0).all())


LOGITS = [some_logits(seed, rows=4, vocab=4096) for seed in range(2)]


@torch.inference_mode()
def test_the_lint_sees_what_the_sampler_waits_for() -> None:
    sampler, lint = Sampler(2, 4096), Lint()
    sampler.admit(0, make_request(temperature=0.8, top_p=0.9), (1, 2, 3))
    with lint:
        sampler.sample(LOGITS[0][:1], [0])
    assert any("takes values from Python" in line for line in lint.found)
    assert any("reads values in Python" in line for line in lint.found)


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
def test_ranks_are_a_stable_sort(scale: float) -> None:
    x_BV = some_logits(3, rows=3) * scale
    x_BV[0, :9] = torch.tensor([0.0, -0.0, 0.0, float("-inf"), 1e-42, -1e-42, 3e38, -3e38, 1.0])
    _, order_BV = sort_best(x_BV, VOCAB)
    ranks = Ranks.of(x_BV)
    ones_BV = torch.ones_like(order_BV)
    for place in (0, 1, 5, 350, VOCAB - 1):
        ids_B = ranks.token(ones_BV, torch.full((3,), place))
        assert ids_B.tolist() == order_BV[:, place].tolist()


def test_a_rows_kind_is_known_before_a_draw() -> None:
    sampler = Sampler(3, VOCAB)
    kinds: list[dict[str, Any]] = [{}, {"logprobs": 2}, {"logit_bias": {1: 2.0}}]
    for row, params in enumerate(kinds):
        sampler.admit(row, make_request(temperature=0, **params), (1, 2))
    assert [sampler.waits([row]) for row in range(3)] == [False, True, False]


def test_a_row_forgets_the_penalties_of_an_earlier_request() -> None:
    """Although its counts stay, beside a row whose counts matter."""
    sampler = Sampler(2, VOCAB, ops=TOGETHER)
    logits = some_logits(0, rows=2)
    best = int(logits[0].argmax())
    for kind in ({"frequency_penalty": 2.0, "repetition_penalty": 3.0}, {"logit_bias": {0: 0.5}}):
        request = make_request(prompt=[best] * 3, temperature=0, **kind)
        sampler.admit(0, request, request.token_ids)
        other = make_request(temperature=0, presence_penalty=1.0)
        sampler.admit(1, other, other.token_ids)
        drawn = [int(sampler.start(logits, [0, 1])[0][0]) for _ in range(2)]
        assert (drawn == [best, best]) == ("logit_bias" in kind)
