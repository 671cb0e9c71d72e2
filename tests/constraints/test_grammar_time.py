"""Slow grammars take turns, and those that are too slow end their requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
from attrs import define, field

from inferno import LLM, SamplingParams
from inferno.constraints.constraint import GrammarConstraint, allow_all
from inferno.constraints.grammar_time import (
    REQUEST_SECONDS,
    SHARE,
    STEP_SECONDS,
    TOKEN_SECONDS,
    GrammarTime,
    TimedMatcher,
    Turns,
)
from inferno.contracts import MaskRequest
from inferno.errors import GrammarFailedError
from inferno.request.requests import Request


@define(eq=False)
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@define(eq=False)
class Costly:
    """A matcher and its compiler: any token may follow, and each takes `seconds`."""

    clock: Clock
    seconds: float
    accepted: list[int] = field(factory=list)
    batches: list[int] = field(factory=list)
    """How many masks were filled at once, each time."""
    is_done: bool = False
    error: str = ""

    def accept(self, token_id: int) -> bool:
        self.clock.now += self.seconds
        self.accepted.append(token_id)
        return True

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def forced(self) -> Sequence[int]:
        return ()

    def fill(self, requests: Sequence[MaskRequest], masks_MW: Any) -> None:
        self.batches.append(len(requests))
        for request in requests:
            masks_MW[request.index] = allow_all(32 * masks_MW.shape[1])


def slow(seconds: float, clock: Clock | None = None) -> GrammarTime:
    time = GrammarTime(clock or Clock())
    time.add(seconds)
    time.next_token()
    return time


def test_what_a_slow_grammar_took_is_paid_for_with_time_that_others_have() -> None:
    turns, times = Turns(), {"a": slow(0.02)}
    assert turns.resting(times, 100.0, alone=False) == {"a"}
    assert turns.resting(times, 100.0 + 0.01 / SHARE, alone=False) == {"a"}, "half of it"
    assert not turns.resting(times, 100.0 + 0.021 / SHARE, alone=False)
    assert not turns.resting(times, 101.0, alone=False), "it owes nothing more"


def test_a_slow_grammar_does_not_save_up_time() -> None:
    turns = Turns()
    assert not turns.resting({"a": slow(0.0)}, 100.0, alone=False)
    assert turns.resting({"a": slow(0.01)}, 1000.0, alone=False) == {"a"}


def test_slow_grammars_alone_take_turns_that_fit_into_a_step() -> None:
    turns = Turns()
    times = {name: slow(0.6 * STEP_SECONDS) for name in "abc"}
    runs = [set(times) - turns.resting(times, float(now), alone=True) for now in range(6)]
    assert [len(each) for each in runs] == [1] * 6
    assert [sorted(set().union(*runs[i : i + 3])) for i in (0, 3)] == [["a", "b", "c"]] * 2


def test_many_that_are_just_slow_share_a_step() -> None:
    times = {str(i): slow(STEP_SECONDS / 4) for i in range(12)}
    assert len(Turns().resting(times, 0.0, alone=True)) == 8


def test_keys_take_turns_however_many_slow_grammars_each_has() -> None:
    """Eight of one key's requests, and one of another's, each of which takes a whole step."""
    turns, ran = Turns(), dict.fromkeys("ab", 0)
    times = {f"a{i}": slow(0.0) for i in range(8)} | {"b": slow(0.0)}
    for id, time in times.items():
        time.tenant = id[0]
    for now in range(40):
        for time in times.values():
            time.last = STEP_SECONDS
        for id in times.keys() - turns.resting(times, float(now), alone=True):
            times[id].add(STEP_SECONDS)
            ran[id[0]] += 1
    assert ran == {"a": 20, "b": 20}


def test_a_grammar_is_slow_by_its_last_token() -> None:
    assert slow(0.01).is_slow
    time = slow(0.01)
    time.add(0.0001)
    time.next_token()
    assert not time.is_slow and time.take_due() == 0.0


def test_one_token_or_all_of_them_may_take_too_long() -> None:
    assert "for one token" in slow(1.1 * TOKEN_SECONDS).error
    clock, many = Clock(), GrammarTime()
    matcher = TimedMatcher(Costly(clock, 0.5 * TOKEN_SECONDS), GrammarTime(clock))
    accepted = 0
    while matcher.accept(1):
        accepted += 1
    assert REQUEST_SECONDS < (accepted + 1) * 0.5 * TOKEN_SECONDS < 1.2 * REQUEST_SECONDS
    assert "than its tokens may" in matcher.error
    for _ in range(20_000):  # a long answer with a usual grammar
        many.add(0.0002)
        many.next_token()
    assert not many.error


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", max_num_seqs=4) as llm:
        yield llm


def test_rows_with_slow_grammars_sit_out_while_others_draw_the_same_tokens(llm: LLM) -> None:
    engine, clock = cast(Any, llm._engine), Clock()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def run(seconds: float) -> tuple[dict[str, list[int]], list[set[str]]]:
        def constrain(request: Request) -> GrammarConstraint | None:
            if request.id == "free":
                return None
            costly = Costly(clock, seconds)
            return GrammarConstraint(TimedMatcher(costly, GrammarTime(clock)), cast(Any, costly))

        engine._constrain, engine.clock = constrain, clock
        for name in ("free", "first", "second"):
            engine.submit(Request(id=name, token_ids=(1, 2, 3), params=params))
        tokens, steps = dict[str, list[int]](), list[set[str]]()
        while engine.busy:
            outputs = engine.step()
            clock.now += 0.01
            steps.append({output.request_id for output in outputs})
            for output in outputs:
                tokens.setdefault(output.request_id, []).append(output.token_id)
        return tokens, steps

    quick, together = run(0.0)
    slowly, steps = run(0.2 * TOKEN_SECONDS)
    assert slowly == quick
    assert together == [{"free", "first", "second"}] * 12
    assert steps[0] == {"free", "first", "second"}, "it is not known yet"
    assert steps[1:12] == [{"free"}] * 11, "its 0.1 s are a second's share"
    assert all(len(each) == 1 for each in steps[12:]) and len(steps) == 12 + 22


def test_a_request_ends_with_an_error_once_its_grammar_is_too_slow(llm: LLM) -> None:
    engine, clock = cast(Any, llm._engine), Clock()
    costly = Costly(clock, 2 * TOKEN_SECONDS)
    matcher = TimedMatcher(costly, GrammarTime(clock))
    engine._constrain = lambda request: GrammarConstraint(matcher, cast(Any, costly))
    with pytest.raises(GrammarFailedError, match="for one token") as caught:
        llm.generate("x", SamplingParams(max_tokens=8))
    assert caught.value.code == "grammar_failed" and caught.value.status == 400
    assert len(costly.accepted) == 1 and not engine.busy


def test_masks_of_a_batch_that_took_long_are_computed_alone_from_then_on() -> None:
    from inferno.constraints import Masks

    clock, costly = Clock(), Costly(Clock(), 0.0)
    times = [GrammarTime(clock) for _ in range(3)]
    rows: dict[int, Any] = {
        row: GrammarConstraint(TimedMatcher(costly, time), cast(Any, costly))
        for row, time in enumerate(times)
    }
    times[1].is_watched = True
    masks = Masks(rows, 2)
    masks.fill(range(3))
    assert costly.batches == [1, 2]
    assert not times[1].is_watched, "it took no time, so it may go with the others again"
    assert all(np.all(masks.known[row] == -1) for row in range(3))
