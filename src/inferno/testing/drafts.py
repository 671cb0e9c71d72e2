"""What drafts must do to an architecture's answers: nothing, however many of them are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from inferno.catalog import Catalog
from inferno.contracts import Drafter, DraftRequest, Lookahead
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.plan import open_model
from inferno.plan.cache_groups import with_num_blocks
from inferno.plan.draft_cost import DraftCost
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike
from inferno.testing.installed import Installed
from inferno.testing.tiny import Toy, small_options

NUM_DRAFTED = 24
Answers = Mapping[str, tuple[int, ...]]


class Guesses(Drafter):
    """Drafts of answers that are known, of which every fifth token or so is another, and which are
    sometimes fewer than asked for."""

    def __init__(self, answers: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.answers, self.vocab_size = [list(answer) for answer in answers], vocab_size

    def propose(
        self, requests: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        return [self._after(list(r.token_ids), r.count) for r in requests]

    def _after(self, known: list[int], count: int) -> list[int]:
        first = len(known)
        answer = next((each for each in self.answers if each[:first] == known), known)
        stop = first + (count // 2 if first % 7 == 0 else count)
        return [
            (token_id + (position * 37 % 5 == 0)) % self.vocab_size
            for position, token_id in enumerate(answer[first:stop], first)
        ]


class DraftTests(Installed):
    """The part of `ArchitectureTests` with drafts."""

    @alike
    def test_drafts_change_nothing(
        self,
        checkpoint: Path,
        catalog: Catalog,
        prompts: list[list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """In batches with prompts in pieces, alone, and where prompts are found in the cache;
        greedy or with a seed."""
        requests = requests_of(prompts)
        plain = _load(checkpoint, catalog, None)
        expected = answers_of(plain, requests)
        engine = _load(checkpoint, catalog, "ngram")
        runner = guessing(engine, requests, expected)
        assert answers_of(engine, requests) == expected
        replayed = _noting(runner, monkeypatch)
        for _ in range(2):  # the second time, prompts are cached
            for request in requests[-2:]:
                answers = answers_of(engine, [request])
                assert answers[request.id] == expected[request.id]
        stats = engine.stats()
        assert 0 < stats.accepted_tokens < stats.draft_tokens
        if runner.replays is not None and runner.replays.refusal is None:
            assert any(replayed), "steps with drafts of one sequence must have been replayed"

    @pytest.mark.slow
    def test_drafts_change_nothing_where_sequences_are_preempted(
        self, toy: Toy, checkpoint: Path, catalog: Catalog, prompts: list[list[int]]
    ) -> None:
        """Then states are dropped with a row, and begin again from a snapshot."""
        if not toy.plan.states:
            pytest.skip("it has no recurrent states")
        requests = requests_of(prompts)
        expected = answers_of(_load(checkpoint, catalog, None), requests)
        engine = _load(checkpoint, catalog, "ngram", tight=len(prompts[-1]) + NUM_DRAFTED)
        guessing(engine, requests, expected)
        assert answers_of(engine, requests) == expected
        stats = engine.stats()
        assert stats.preemptions > 0 and 0 < stats.accepted_tokens < stats.draft_tokens


def requests_of(prompts: Sequence[Sequence[int]]) -> list[Request]:
    return [
        Request(
            id=str(i),
            token_ids=tuple(prompt),
            params=SamplingParams(temperature=i % 2, seed=i, max_tokens=NUM_DRAFTED),
        )
        for i, prompt in enumerate(prompts)
    ]


def _load(checkpoint: Path, catalog: Catalog, speculative: str | None, *, tight: int = 0) -> Engine:
    """Load the model for steps of few tokens; with a cache for hardly more than one sequence of
    `tight` tokens."""
    options = small_options(
        {"max_num_batched_tokens": 48, "block_size": 16, "speculative": speculative}
    )
    with open_model(str(checkpoint), options, catalog) as opened:
        if tight:
            plan = opened.plan
            groups = with_num_blocks(plan.groups, -(-tight // plan.block_size) + 1)
            opened = attrs.evolve(opened, plan=attrs.evolve(plan, groups=groups))
        return Engine.load(opened)


def guessing(engine: Engine, requests: Sequence[Request], expected: Answers) -> ModelRunner:
    """Let an engine guess what is expected, as often as it may."""
    runner: Any = engine._runner
    assert isinstance(runner, ModelRunner) and runner.drafting is not None
    whole = [[*request.token_ids, *expected[request.id]] for request in requests]
    runner.drafting.drafter = Guesses(whole, engine.plan.vocab_size)
    engine._scheduler._speculation.cost = DraftCost(most=8, verify=0.01)
    return runner


def _noting(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Capture steps ahead, and return a list that notes from now on, of each step with drafts,
    whether it is replayed."""
    replayed: list[bool] = []
    if runner.replays is None:
        return replayed
    runner.capture_ahead()
    run = type(runner.replays).run

    def noted(replays: Any, arrays: Any) -> Any:
        logits_TV = run(replays, arrays)
        if arrays.drafts is not None:
            replayed.append(logits_TV is not None)
        return logits_TV

    monkeypatch.setattr(type(runner.replays), "run", noted)
    return replayed


def answers_of(engine: Engine, requests: Sequence[Request]) -> dict[str, tuple[int, ...]]:
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.busy:
        for output in engine.step():
            assert output.token_id is not None, "these requests end with a token"
            tokens[output.request_id].append(output.token_id)
        engine.check()
    return {id: tuple(token_ids) for id, token_ids in tokens.items()}
