"""Who is admitted, and how long a request is expected to wait."""

from __future__ import annotations

import pytest
from attrs import define

from inferno.errors import QueueFullError
from inferno.server.access.limiter import Costs, Ending, Limiter


@define(eq=False)
class Asked:
    owner: str = ""
    num_outputs: int = 1
    num_prompt_tokens: int = 100

    def abort(self, why: Ending) -> None: ...


COSTS = Costs(max_num_seqs=4, prompt_seconds=0.01, row_seconds=0.05)
SHARED = COSTS._replace(shares=True)


def filled(limiter: Limiter, owner: str, count: int, begun: int = 0) -> list[Asked]:
    requests = [Asked(owner) for _ in range(count)]
    for each in requests:
        limiter.admit(each)
    for each in requests[:begun]:
        limiter.begun(each)
    return requests


def retry(error: QueueFullError) -> int:
    return int(error.headers["Retry-After"])


def test_the_last_places_are_not_for_a_key_that_has_most() -> None:
    limiter = Limiter(limit=90, costs=lambda: COSTS)
    greedy = 0
    with pytest.raises(QueueFullError, match="of this API key"):
        for greedy in range(200):  # noqa: B007
            limiter.admit(Asked("greedy"))
    assert greedy == 80, "eight times what is left"
    filled(limiter, "other", 8)
    with pytest.raises(QueueFullError, match="of this API key"):
        limiter.admit(Asked("greedy"))


def test_without_keys_one_client_may_have_all_places() -> None:
    limiter = Limiter(limit=10)
    filled(limiter, "", 10)
    with pytest.raises(QueueFullError, match="too many requests are waiting") as caught:
        limiter.admit(Asked())
    assert retry(caught.value) == 1, "nothing is known yet"


def test_a_full_queue_says_when_there_is_a_place() -> None:
    limiter = Limiter(limit=4, costs=lambda: COSTS)
    filled(limiter, "", 4, begun=4)
    limiter.ended(200)
    with pytest.raises(QueueFullError) as caught:
        limiter.admit(Asked(num_outputs=2))
    assert retry(caught.value) == 20, "two outputs of 200 tokens at 50 ms"


def test_the_expected_wait_is_that_of_prompts_and_answers_before_it() -> None:
    limiter = Limiter(costs=lambda: COSTS)
    assert limiter.wait("a") == 0
    running = filled(limiter, "a", 4, begun=4)
    for _ in range(3):
        limiter.ended(10)
    filled(limiter, "a", 3)
    assert limiter.wait("b") == pytest.approx(3 * 100 * 0.01 + 4 * 10 * 0.05)
    limiter.release(running[0])
    assert limiter.in_flight == 6
    limiter.costs = lambda: COSTS._replace(max_num_seqs=8)
    assert limiter.wait("b") == pytest.approx(3.0), "there is a free row: only prompts come before"


def test_where_keys_share_another_waits_for_as_many_of_each_as_of_its_own() -> None:
    limiter = Limiter(costs=lambda: SHARED)
    filled(limiter, "greedy", 104, begun=4)
    limiter.ended(10)
    assert limiter.wait("modest") == pytest.approx(1.0), "one prompt; its row is given up at once"
    assert limiter.wait("greedy") == pytest.approx(100.0 + 101 * 10 * 0.05)


def test_who_would_wait_too_long_is_told_when_to_come_again() -> None:
    limiter = Limiter(max_wait=5.0, costs=lambda: SHARED)
    admitted = 0
    with pytest.raises(QueueFullError, match=r"would wait [67].* over 5 s") as caught:
        for admitted in range(20):  # noqa: B007
            limiter.admit(Asked("greedy"))
            limiter.ended(10)
    assert 3 < admitted < 10 and retry(caught.value) >= 1
    limiter.admit(Asked("modest"))


def test_counts_are_as_before_when_all_have_left() -> None:
    limiter = Limiter(costs=lambda: COSTS)
    several = [Asked("a", num_outputs=3), Asked("b"), Asked("a")]
    for each in several:
        limiter.admit(each)
    limiter.begun(several[0])
    assert (limiter.waiting("a"), limiter.waiting("b"), limiter.waiting("c")) == (3, 1, 0)
    for each in [*several, several[0]]:
        limiter.release(each)
        limiter.begun(each)
    assert limiter.in_flight == 0 and not limiter.shares and not limiter.running
