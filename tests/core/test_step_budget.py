"""Steps that are bounded in time, by a clock that is made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.scheduler_harness import BLOCK, VOCAB, Harness, prompt_of, run_anything

from inferno.builtin.lru import LRUPrefixCache
from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups
from inferno.core.types import Step
from inferno.plan import Options, resolve
from inferno.plan.image_use import ImageUse
from inferno.plan.step_budget import (
    FEWEST_TOKENS,
    FIRST_SECONDS,
    FIRST_TOKENS,
    LEAST_TOKENS,
    StepBudget,
)
from inferno.plan.step_cost import Work
from inferno.request.requests import ImagePart, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import FakeRunner
from inferno.testing.fake_runner import continuation


def paced(cost: Callable[[Work], float] = lambda work: 1.0 + work.tokens) -> Harness:
    """Steps beside streams may take 24 s: one, and one more for each token."""
    return Harness(num_blocks=400, max_model_len=700, budget=512, seconds=24.0, cost=cost)


def prompts_in(step: Step) -> int:
    return sum(s.num_tokens for s in step.slices if s.num_tokens > 1)


def test_a_long_prompt_is_computed_in_parts_that_leave_streams_their_time() -> None:
    harness = paced()
    harness.add("a", prompt_of(0, 40), 200)
    harness.add("b", prompt_of(1, 40), 200)
    harness.step()
    harness.add("long", prompt_of(2, 600))
    first = len(harness.steps)
    while not harness.outputs["long"]:
        harness.step()
    steps = harness.steps[first:]
    assert all(len(step.slices) == 3 for step in steps), "no stream misses a step"
    usual = [step for step in steps[3:-1] if prompts_in(step) in (20, 21)]
    assert len(usual) >= 0.8 * len(steps[3:-1]), "1 + 2 + 21 s; one in eight tries twice as many"
    assert all(harness.cost(step.work[0]) <= 48 for step in steps[3:])


def test_behind_a_long_context_fewer_tokens_than_usual_go_on() -> None:
    budget = StepBudget(2048, 0.2, lambda: (Work(8, 8.0), True))
    for count in (64, 32, 16, 8, 24, 48):
        for start in (60_000, 80_000, 100_000):
            work = Work(8, 8.0).plus(start, count)
            budget.record(work, 0.01 + 1e-6 * work.pairs, alone=False)
    budget.record(Work(8, 8.0), 0.01, alone=True)
    budget.begin()
    assert budget.give(2048, 100_000) in (2, 3), "each takes 0.1 s"
    assert budget.give(2048, 100_000) <= 1, "and another prompt adds none, or one"
    budget.begin()
    assert budget.give(2048, 1_000_000) == FEWEST_TOKENS, "1 s each, and it goes on"


def test_a_step_that_took_an_hour_is_forgotten() -> None:
    harness = paced(lambda work: 3600.0 if len(harness.steps) == 3 else 1.0 + work.tokens)
    harness.add("stream", prompt_of(1, 4), 200)
    harness.step()
    harness.add("long", prompt_of(2, 600), 1)
    while not harness.outputs["long"]:
        harness.step()
    assert len(harness.steps) < 60, "600 tokens, 20 or so in each step"


def test_without_a_stream_a_prompt_takes_whole_steps() -> None:
    harness = paced()
    harness.add("long", prompt_of(2, 600))
    harness.run()
    assert [step.num_tokens for step in harness.steps] == [512, 88]


def test_a_stream_runs_on_though_a_prompt_before_it_takes_all_the_time() -> None:
    harness = paced()
    harness.add("stream", prompt_of(1, 4), 60)
    harness.step()
    harness.add("long", prompt_of(2, 500), 1)
    harness.step()
    harness.add("late", prompt_of(3, 4), 30)
    while harness.scheduler.busy:
        before = {name: len(harness.output(name)) for name in ("stream", "late")}
        step = harness.step()
        for name, count in before.items():
            if 0 < count < {"stream": 60, "late": 30}[name]:
                assert len(harness.output(name)) == count + 1, f"{name} missed {step}"


def test_two_prompts_share_a_step_in_the_order_of_arrival() -> None:
    harness = paced()
    harness.add("stream", prompt_of(1, 4), 100)
    for _ in range(3):
        harness.step()
    harness.add("x", prompt_of(2, 300))
    harness.add("y", prompt_of(3, 300))
    harness.run()
    assert harness.order == ["stream", "x", "y"]


def test_a_prompt_goes_on_where_one_token_takes_longer_than_a_step_may() -> None:
    harness = paced(cost=lambda work: 1000.0 * work.tokens)
    harness.add("stream", prompt_of(1, 4), 40)
    harness.step()
    harness.add("long", prompt_of(2, 20 * LEAST_TOKENS))
    harness.run()
    assert harness.output("long") == continuation(prompt_of(2, 20 * LEAST_TOKENS), 1, VOCAB)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_answers_are_the_same_however_steps_are_cut(data: st.DataObject) -> None:
    seconds = data.draw(st.sampled_from([0.5, 3.0, 9.0, 40.0]))
    each = data.draw(st.sampled_from([0.1, 1.0, 7.0]))
    harness = Harness(
        num_blocks=data.draw(st.sampled_from([24, 64])),
        seconds=seconds,
        cost=lambda work: each * work.tokens + 0.01 * work.pairs,
        windows={8: 24} if data.draw(st.booleans()) else {},
    )
    run_anything(harness, data)


def test_work_says_what_a_step_computes() -> None:
    harness = Harness()
    harness.add("a", prompt_of(1, 10), 3)
    assert harness.step().work == (Work(10, 50.0), False)
    assert harness.step().work == (Work(1, 10), True)


def test_the_engine_tells_the_scheduler_what_its_steps_took() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.5  # between the launch of a step and its results
        return now

    for lag in (0, 1):
        plan = resolve("demo", Options(device="cpu", max_step_time=30.0))
        groups = CacheGroups(2048, BLOCK, LRUPrefixCache(2048))
        scheduler = scheduler_of(plan, groups, streams=True)
        engine = Engine(plan, scheduler, FakeRunner(BLOCK, VOCAB), lag=lag, clock=clock)
        engine.submit(Request(id="a", token_ids=(1, 2, 3), params=SamplingParams(max_tokens=5)))
        while engine.busy:
            engine.step()
        assert scheduler.budget.max_seconds == 30
        first = scheduler.budget.expected(Work(3, 4.5), alone=False)
        assert first == pytest.approx(1.5 * (1 + lag))
        later = scheduler.budget.expected(Work(1, 3), alone=True)
        assert later is not None and 1.4 < later < 3.1


def test_the_first_step_of_a_kind_is_expected_by_the_other_kind() -> None:
    budget = StepBudget(64, 0.2)
    assert budget.expected(Work(8, 32), alone=False) is None
    budget.record(Work(8, 32), 40.0, alone=False)
    alone = budget.expected(Work(2, 18), alone=True)
    assert alone == pytest.approx(10) and budget.seconds(2, 18, True) is None
    budget = StepBudget(64, 0.2)
    budget.record(Work(1, 10), 2.0, alone=True)
    assert budget.expected(Work(8, 32), alone=False) == pytest.approx(16), "one after another"
    assert budget.expected(Work(1, 4), alone=False) == FIRST_SECONDS, "kernels may be compiled"
    assert budget.seconds(8, 32, False) is None


# --- images that one step computes ----------------------------------------------------------------


def image_at(start: int, count: int) -> ImagePart:
    return ImagePart(start=start, count=count, digest=b"d", grid=(1, 1, count), path="")


def whole_images(max_tokens: int = 512) -> StepBudget:
    budget = StepBudget(max_tokens)
    use = ImageUse(
        encoder="encoder",
        num_parameters=1,
        nbytes=4,
        most_tokens=64,
        side=1,
        cache_bytes=0,
        distribution="test",
        whole=True,
    )
    budget.sees([use])
    return budget


@pytest.mark.parametrize(
    ("start", "most", "given"),
    [
        (0, 100, 100),  # all of both
        (0, 30, 20),  # up to the first one, which would be divided
        (20, 16, 16),  # all of it
        (20, 15, 0),  # it waits for a step with more room
        (28, 8, 8),  # the rest of one that is found in the cache up to there
        (28, 7, 0),
        (0, 36, 36),  # it ends with the image
        (36, 10, 4),  # up to the second
        (60, 10, 10),  # after both
    ],
)
def test_no_slice_ends_inside_an_image_of_which_a_step_has_all(
    start: int, most: int, given: int
) -> None:
    budget, images = whole_images(), (image_at(20, 16), image_at(40, 16))
    budget.begin()
    assert budget.within(most, start, images) == given
    assert budget.give(most, start, images) == given


def test_an_image_is_given_whole_though_a_stream_waits() -> None:
    budget = whole_images()
    budget.max_seconds, budget.streams = 0.01, lambda: (Work(1, 1.0), True)
    budget.begin()
    assert budget.give(400, 0) == FIRST_TOKENS
    budget.begin()
    assert budget.give(400, 0, (image_at(0, 200),)) == 200
    assert budget.admitting(400) == 0, "the next prompt waits"


def test_a_model_that_divides_images_gives_what_fits() -> None:
    budget = StepBudget(512)
    budget.begin()
    assert budget.within(30, 0, (image_at(20, 16),)) == 30
    assert budget.give(30, 0, (image_at(20, 16),)) == 30
