"""What a key that asks for little gets beside one that asks for much. Steps have a cost, and no
clock is read: the figures are the policy's own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from inferno.contracts import QueueBuild, QueueNeed
from inferno.testing import QueuedRun, QueuePolicyTests, load_catalog
from inferno_fair.queue import FairQueue

ROWS = 16
COSTS: dict[str, Callable[[int], float]] = {
    "weights take most": lambda tokens: 0.02 + 0.0005 * tokens,
    "as on a Zen 4": lambda tokens: 0.0025 + 0.0008 * tokens,
    "tokens take most": lambda tokens: 0.002 + 0.004 * tokens,
}
"""What a step takes."""


class TestFair(QueuePolicyTests):
    policy = "fair"


def prompt(seed: int, length: int = 24) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(50) for _ in range(length)]


def modest(run: QueuedRun, count: int = 12, tokens: int = 40) -> tuple[float, float]:
    """Ask for `count` answers, one after another. Returns the longest time to a first token but for
    the first answer, from which the queue learns what steps cost, and the mean tokens per second
    after it."""
    firsts, rates = [], []
    for i in range(count):
        name = f"modest {i}"
        run.add(name, prompt(1000 + i), tokens, tenant="modest")
        run.until(name)
        times = run.times[name]
        firsts.append(times[0] - run.arrived[name])
        rates.append((len(times) - 1) / (times[-1] - times[0]))
        for _ in range(3):  # its client reads the answer, and the others go on
            run.step()
    return max(firsts[1:]), sum(rates[1:]) / len(rates[1:])


def beside_a_greedy_one(
    build: QueueBuild, cost: Callable[[int], float], rows: int
) -> tuple[QueuedRun, float, float]:
    run = QueuedRun(build, cost=cost, max_num_seqs=rows, max_step_time=0.1)
    for i in range(1000):
        run.add(f"greedy {i}", prompt(i), 60, tenant="greedy")
    for _ in range(30):
        run.step()
    return run, *modest(run)


@pytest.mark.parametrize("rows", [ROWS, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cost", COSTS.values(), ids=list(COSTS))
def test_a_modest_key_hardly_notices_a_greedy_one(cost: Callable[[int], float], rows: int) -> None:
    alone = QueuedRun(FairQueue, cost=cost, max_num_seqs=rows, max_step_time=0.1)
    first_alone, rate_alone = modest(alone)
    run, first, rate = beside_a_greedy_one(FairQueue, cost, rows)
    assert first <= 2 * first_alone
    assert rate >= 0.8 * rate_alone
    given = run.tokens()
    assert given["greedy"] > given["modest"], "what is left is the greedy one's"


def test_first_come_first_served_lets_it_wait() -> None:
    """The test above can fail."""
    build = load_catalog().queue_policy("first-come").item.build
    run = QueuedRun(build, max_num_seqs=ROWS)
    for i in range(200):
        run.add(f"greedy {i}", prompt(i), 60, tenant="greedy")
    run.add("modest", prompt(1000), 1, tenant="modest")
    run.until("modest")
    assert run.times["modest"][0] > 10


def test_two_greedy_keys_get_the_same() -> None:
    run = QueuedRun(FairQueue, max_num_seqs=ROWS)
    for i in range(300):
        run.add(f"a {i}", prompt(i), 30, tenant="a")
    for i in range(60):
        run.add(f"b {i}", prompt(500 + i), 30, tenant="b")
    while run.tokens()["b"] < 900:
        run.step()
    given = run.tokens()
    assert 0.8 < given["a"] / given["b"] < 1.25


def test_a_key_with_two_streams_is_not_held_back_by_one_with_many() -> None:
    run = QueuedRun(FairQueue, max_num_seqs=ROWS)
    for i in range(300):
        run.add(f"many {i}", prompt(i), 100, tenant="many")
    for _ in range(40):
        run.step()
    run.add("one", prompt(1000), 100, tenant="one")
    for i in range(2):
        run.add(f"two {i}", prompt(2000 + i), 100, tenant="two")
    run.until("one", "two 0", "two 1")
    ends = {name: run.times[name][-1] for name in ("one", "two 0", "two 1")}
    assert max(ends.values()) < 1.4 * (run.arrived["one"] + 100 * run.cost(3)), ends


def test_a_prompt_of_the_greedy_key_does_not_starve() -> None:
    run = QueuedRun(FairQueue, max_num_seqs=ROWS)
    run.add("stream", prompt(1), 150, tenant="modest")
    for i in range(20):
        run.add(f"greedy {i}", prompt(10 + i, 100), 5, tenant="greedy")
    run.until("stream")
    assert run.tokens()["greedy"] >= 5, "one of its requests has ended"


def test_the_latest_of_the_greedy_key_makes_room_and_goes_on_later() -> None:
    run = QueuedRun(FairQueue, max_num_seqs=4)
    for i in range(4):
        run.add(f"greedy {i}", prompt(i), 50, tenant="greedy")
    for _ in range(10):
        run.step()
    run.add("modest", prompt(9), 5, tenant="modest")
    run.step()
    assert run.scheduler.stats.preemptions == 1
    run.drain()


def test_work_in_the_background_comes_after_that_of_any_key() -> None:
    """Of one key too: its batch does not slow its streams."""
    run = QueuedRun(FairQueue, max_num_seqs=ROWS)
    for i in range(100):
        run.add(f"batch {i}", prompt(i), 40, tenant="a", priority=10)
    for _ in range(20):
        run.step()
    run.add("stream", prompt(500), 60, tenant="a")
    run.until("stream")
    times = run.times["stream"]
    assert (times[-1] - times[0]) / 59 < 1.3 * run.cost(1)


def asked(tenant: str, arrival: int) -> Any:
    request = SimpleNamespace(priority=0, tenant=tenant, token_ids=(1, 2))
    return SimpleNamespace(request=request, arrival=arrival, num_computed=0)


def test_a_second_key_is_noticed_when_it_comes_and_when_it_has_gone() -> None:
    queue = FairQueue[Any](QueueNeed(max_num_seqs=4, seconds=lambda *work: None))
    greedy, modest = [asked("greedy", i) for i in range(4)], asked("modest", 4)
    for each in greedy:
        queue.push(each)
        queue.pop()
    assert queue.turn(greedy) == greedy and queue.displaced(greedy) is None
    queue.push(modest)
    assert queue.displaced(greedy) is greedy[3], "the latest of the flow with the most rows"
    queue.turn(greedy[:3])
    queue.push(greedy[3])
    assert queue.first() is modest
    queue.pop()
    assert queue.turn([*greedy[:3], modest], everyone=True) == [modest, *greedy[:3]]
    assert queue.turn(greedy[:3]) == greedy[:3], "it has ended"
    assert queue.first() is greedy[3] and queue.displaced(greedy[:3]) is None


def test_what_is_owed_to_a_key_is_kept_between_its_requests() -> None:
    """With answers so short that the greedy key's step would fall into each."""
    cost = COSTS["as on a Zen 4"]
    alone = QueuedRun(FairQueue, cost=cost, max_num_seqs=64, max_step_time=0.1)
    _, rate_alone = modest(alone, count=40, tokens=12)
    run = QueuedRun(FairQueue, cost=cost, max_num_seqs=64, max_step_time=0.1)
    for i in range(1000):
        run.add(f"greedy {i}", prompt(i), 60, tenant="greedy")
    for _ in range(30):
        run.step()
    _, rate = modest(run, count=40, tokens=12)
    assert rate >= 0.8 * rate_alone
