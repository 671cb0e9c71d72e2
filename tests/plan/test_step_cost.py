"""The cost of steps, learnt from times that are made up."""

from __future__ import annotations

import random

import pytest

from inferno.plan.step_budget import (
    FEWEST_TOKENS,
    FIRST_TOKENS,
    LEAST_TOKENS,
    StepBudget,
    max_step_time,
)
from inferno.plan.step_cost import StepCost, Work
from inferno.request.requests import ImagePart


def seconds_of(work: Work) -> float:
    """A machine that needs 30 ms for any step, 3 ms for a token and 0.4 us for a pair."""
    return 0.03 + 0.003 * work.tokens + 4e-7 * work.pairs


def learnt(works: list[Work], cost: StepCost | None = None) -> StepCost:
    cost = cost or StepCost()
    for work in works:
        cost.record(work, seconds_of(work))
    return cost


def works(count: int, seed: int = 0) -> list[Work]:
    draw = random.Random(seed)
    return [Work().plus(draw.randrange(8_000), draw.randrange(1, 600)) for _ in range(count)]


def test_nothing_is_expected_before_a_step_was_seen() -> None:
    assert StepCost().seconds(Work(1, 1)) is None


def test_one_step_is_explained_by_its_tokens() -> None:
    cost = StepCost()
    cost.record(Work(2048, 2e6), 4.0)
    assert cost.seconds(Work(1024, 5e5)) == pytest.approx(2.0)


def test_the_three_parts_are_found() -> None:
    cost = learnt(works(50))
    for work in (Work(1, 1), Work(256, 256 * 4000), Work(2048, 2048 * 1024)):
        assert cost.seconds(work) == pytest.approx(seconds_of(work), rel=1e-3)


def test_what_fits_takes_the_time_that_was_given() -> None:
    cost = learnt([*works(50), Work().plus(0, 600)])
    for start in (0, 1000, 30_000):
        count = cost.tokens(0.2, start)
        part = Work().plus(start, count)
        assert seconds_of(part) - 0.03 <= 0.2 * 1.001 < seconds_of(Work().plus(start, count + 2))


def test_a_step_that_a_busy_machine_held_up_counts_little() -> None:
    cost = learnt(works(50))
    cost.record(Work(100, 5_000), 60.0)
    assert cost.seconds(Work(100, 5_000)) == pytest.approx(seconds_of(Work(100, 5_000)), rel=0.1)


def test_a_machine_that_has_become_slower_is_learnt_anew() -> None:
    cost = learnt(works(50))
    for work in works(80, seed=1):
        cost.record(work, 3 * seconds_of(work))
    work = Work(256, 1e5)
    assert cost.seconds(work) == pytest.approx(3 * seconds_of(work), rel=0.05)


def test_no_cost_is_negative_whatever_is_measured() -> None:
    draw = random.Random(3)
    for seed in range(20):
        cost = StepCost()
        for work in works(6, seed):
            cost.record(work, draw.uniform(0.001, 5))
        bare = cost.seconds(Work())
        assert bare is not None and bare >= 0
        assert (cost.seconds(Work(10_000, 1e8)) or 0) >= bare
        assert cost.tokens(0.5, 0) <= cost.tokens(1.0, 0)


def test_times_that_are_none_are_not_learnt() -> None:
    cost = StepCost()
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        cost.record(Work(1, 1), seconds)
    assert cost.num_recorded == 0


def test_no_more_tokens_fit_than_four_times_what_was_seen() -> None:
    cost = StepCost()
    cost.record(Work(1, 1), 1e-6)
    assert cost.tokens(10.0, 0) == 4


# --- the budget of a step -------------------------------------------------------------------------


def budget(streams: Work, max_seconds: float = 0.2) -> StepBudget:
    return StepBudget(2048, max_seconds, lambda: (streams, bool(streams.tokens)))


def teach(budget: StepBudget) -> StepBudget:
    for work in works(40):
        budget.record(work, seconds_of(work), alone=False)
    return budget


def test_a_cpu_has_a_fifth_of_a_second_and_a_gpu_a_twentieth_unless_asked() -> None:
    assert [max_step_time(None, kind) for kind in ("cpu", "cuda", "xpu")] == [0.2, 0.05, 0.05]
    assert max_step_time(0.0, "cpu") == 0.0 and max_step_time(3.0, "cuda") == 3.0


def test_without_streams_a_prompt_has_the_whole_step() -> None:
    steps = teach(budget(Work()))
    assert steps.begin() == 2048 and steps.give(2048, 0) == 2048


def test_streams_of_other_engines_bound_a_step_too() -> None:
    steps = teach(budget(Work()))
    steps.others_stream = lambda: True
    steps.begin()
    assert steps.give(2048, 0) < 2048


def test_without_a_limit_streams_do_not_matter() -> None:
    steps = teach(budget(Work(8, 800), max_seconds=0))
    steps.begin()
    assert steps.give(2048, 0) == 2048


def test_beside_streams_a_step_keeps_to_its_seconds() -> None:
    streams = Work(8, 8 * 500)
    steps = teach(budget(streams))
    for start in (0, 4000):
        steps.begin()
        count = steps.give(2000, start)
        assert 0.19 < seconds_of(streams.plus(start, count)) <= 0.2


def test_prompts_of_one_step_share_its_seconds() -> None:
    streams = Work(2, 100)
    steps = teach(budget(streams))
    steps.begin()
    first = steps.give(30, 0)
    second = steps.give(2000, 0)
    assert first == 30 and 0.19 < seconds_of(streams.plus(0, first).plus(0, second)) <= 0.2
    assert steps.give(2000, 0) <= 1 and steps.fitting(2000) <= 1


def test_an_unknown_cost_is_tried_with_few_tokens() -> None:
    steps = budget(Work(1, 10))
    steps.begin()
    assert steps.give(2000, 0) == FIRST_TOKENS
    assert steps.give(2000, 0) == 0


def test_prompts_go_on_however_long_steps_take() -> None:
    steps = budget(Work(1, 10))
    steps.record(Work(2000, 0), 2000.0, alone=False)
    steps.begin()
    assert steps.give(2000, 0) == FEWEST_TOKENS
    assert steps.give(2000, 0) == 0


def test_a_step_may_take_twice_as_long_where_most_of_it_is_not_the_prompts() -> None:
    dear, streams = 0.15, Work(1, 10)
    steps = budget(streams)
    for work in works(40):
        steps.record(work, seconds_of(work) + dear, alone=False)
    steps.begin()
    work = streams.plus(0, steps.give(2000, 0))
    assert 0.2 < seconds_of(work) + dear <= 0.4
    assert work.tokens == pytest.approx((0.03 + dear) / 0.003, rel=0.05), "half of it is theirs"


def test_prompts_get_as_much_time_as_streams_that_take_more_than_the_limit() -> None:
    streams = Work(200, 200 * 500)
    steps = teach(budget(streams))
    steps.record(streams, seconds_of(streams), alone=True)
    steps.begin()
    count = steps.give(2000, 0)
    assert seconds_of(streams.plus(0, count)) == pytest.approx(2 * seconds_of(streams), rel=0.02)


def test_a_constant_is_found_though_steps_begin_small() -> None:
    """All steps of one size are explained by their tokens alone, so that prompts would get the
    least for ever, where most of a step's time is a constant."""
    streams, given = Work(8, 800), list[int]()
    steps = budget(streams)
    steps.record(Work(512, 16_384), 7.0, alone=False)  # the first step, which captured
    for _ in range(120):
        steps.begin()
        given.append(steps.give(2000, 0))
        work = streams.plus(0, given[-1])
        steps.record(work, 0.15 + 0.001 * work.tokens, alone=False)
        assert 0.15 + 0.001 * work.tokens <= 0.42
    assert min(given[60:]) > 4 * LEAST_TOKENS


def test_a_step_begins_no_more_images_than_it_may_but_always_one() -> None:
    def image(start: int, count: int) -> ImagePart:
        return ImagePart(start, count, bytes(16), (1, 2, 2 * count), "")

    images = image(10, 100), image(120, 100), image(230, 500)
    steps = StepBudget(2048, max_images=150)
    steps.begin()
    assert steps.give(400, 0, images) == 120, "the second would be too many"
    assert steps.give(300, 0, (image(5, 60),)) == 5, "and so would another prompt's"
    steps.begin()
    assert steps.give(400, 120, images) == 110
    steps.begin()
    assert steps.give(400, 230, images) == 400, "one is begun, however large"
    steps.begin()
    assert steps.give(50, 300, images) == 50, "it has begun before"
