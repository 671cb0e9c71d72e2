"""Which of several engines a request goes to: hits of their prefix caches, and their work."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from inferno.builtin.lru import LRUPrefixCache
from inferno.process.engines.router import Placed, Router
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores.keys import extend_keys

BLOCK, BLOCKS = 16, 9600
"""What all engines of a simulation can cache together."""
ANSWER = 100
PROMPT_SECONDS, ROW_SECONDS = 1 / 20_000, 1 / 10_000


def request(
    token_ids: Sequence[int], name: str = "r", max_tokens: int = ANSWER, salt: str = ""
) -> Request:
    params = SamplingParams(max_tokens=max_tokens)
    return Request(id=name, token_ids=tuple(token_ids), params=params, cache_salt=salt)


def turns_of_agents(seed: int, sessions: int = 60, agents: int = 4) -> Iterator[list[int]]:
    """The prompts of conversations, in the order of a busy server: each is the one before with an
    answer and a question, and all of an agent begin with its system prompt."""
    draw = random.Random(seed)
    systems = [[draw.randrange(50_000) for _ in range(2000)] for _ in range(agents)]
    live = [
        systems[i % agents] + [draw.randrange(50_000) for _ in range(200)] for i in range(sessions)
    ]
    left = [8] * sessions
    while going := [i for i in range(sessions) if left[i]]:
        i = draw.choice(going)
        yield list(live[i])
        live[i] += [draw.randrange(50_000) for _ in range(draw.choice((60, 150, 600)))]
        left[i] -= 1


@define
class Engine:
    """One that computes a request at a time, with the built-in prefix cache."""

    cache: LRUPrefixCache
    free: list[int]
    until: float = 0.0
    work: float = 0.0

    @classmethod
    def of(cls, blocks: int) -> Engine:
        return cls(LRUPrefixCache(blocks), list(range(blocks)))

    def hits(self, token_ids: Sequence[int]) -> int:
        """Compute a prompt; return the tokens that were cached."""
        keys: list[bytes] = []
        extend_keys(keys, token_ids, BLOCK)
        blocks = self.cache.match(keys)
        hits = len(blocks) * BLOCK
        for block in blocks:
            self.cache.touch(block)
        lacking = len(keys) - len(blocks) - len(self.free)
        self.free += self.cache.evict(lacking) if lacking > 0 else []
        for key in keys[len(blocks) :]:
            block = self.free.pop()
            blocks.append(self.cache.insert(key, block))
        for block in reversed(blocks):
            self.cache.release(block)
        return hits


@define
class Run:
    """What became of requests."""

    hit: float
    """Of all tokens of prompts."""
    busiest: float
    """The work of the engine that had most of it, by the mean."""
    waits: list[float]
    """Until each one's first token, sorted."""
    given: list[int]
    """How many each engine had."""

    def wait(self, share: float) -> float:
        return self.waits[int(share * (len(self.waits) - 1))]


def simulate(
    prompts: Iterable[Sequence[int]], engines: int, seconds: float, *, blind: bool = False
) -> Run:
    """Send a request every so many seconds, to where the router says, or `blind`, to where the
    least work is. An engine computes one after the other."""
    each = [Engine.of(BLOCKS // engines) for _ in range(engines)]
    router = Router(engines, block_size=BLOCK, num_blocks=0 if blind else BLOCKS // engines)
    coming: list[tuple[float, int, Placed, bool]] = []  # tokens
    now, hits, total, waits, given = 0.0, 0, 0, list[float](), [0] * engines
    for number, token_ids in enumerate(prompts):
        now += seconds
        while coming and coming[0][0] <= now:
            _, _, placed, last = heapq.heappop(coming)
            router.took(placed, 7)
            if last:
                router.ended(placed)
        placed = router.place(request(token_ids), range(engines), ROW_SECONDS / PROMPT_SECONDS)
        engine = each[placed.engine]
        prefix = engine.hits(token_ids)
        prefill = (len(token_ids) - prefix) * PROMPT_SECONDS
        begins = max(now, engine.until) + prefill
        waits.append(begins - now)
        for i in range(ANSWER):
            last = i == ANSWER - 1
            heapq.heappush(coming, (begins + i * ROW_SECONDS, number, placed, last))
        engine.until = begins + ANSWER * ROW_SECONDS
        engine.work += prefill + ANSWER * ROW_SECONDS
        hits, total = hits + prefix, total + len(token_ids)
        given[placed.engine] += 1
    work = [engine.work for engine in each]
    return Run(hits / total, max(work) / (sum(work) / engines), sorted(waits), given)


@pytest.mark.parametrize(
    "engines", [pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), 4]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_sessions_find_their_prefixes_and_no_engine_has_much_more_work(
    seed: int, engines: int
) -> None:
    run = simulate(turns_of_agents(seed), engines, 0.02)
    assert run.hit >= 0.85
    assert run.busiest <= 1.1


def test_as_much_is_found_as_by_one_engine_with_all_the_memory() -> None:
    one, four = (simulate(turns_of_agents(1), count, 0.02) for count in (1, 4))
    assert four.hit >= 0.95 * one.hit
    assert simulate(turns_of_agents(1), 4, 0.02, blind=True).hit < 0.9 * one.hit


def test_one_prompt_that_all_ask_for_is_computed_by_all_engines() -> None:
    draw = random.Random(9)
    shared = [draw.randrange(50_000) for _ in range(4000)]
    prompts = [shared + [draw.randrange(50_000) for _ in range(30)] for _ in range(300)]
    run, blind = (simulate(prompts, 4, 0.004, blind=blind) for blind in (False, True))
    assert run.wait(0.95) <= 2 * blind.wait(0.95)
    assert run.hit >= 0.95
    assert min(run.given) >= 50


def prompt(count: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def router_of(engines: int = 2, blocks: int = 1000) -> Router:
    return Router(engines, block_size=BLOCK, num_blocks=blocks)


def test_a_conversation_goes_on_where_it_began_with_its_answer() -> None:
    router = router_of()
    first = router.place(request(prompt(500)), [0, 1])
    other = router.place(request(prompt(600, 10_000)), [0, 1])
    assert {first.engine, other.engine} == {0, 1}
    for token_id in range(700, 900):
        router.took(first, token_id)
    router.ended(first)
    router.ended(other)
    turn = request((*prompt(500), *range(700, 900), 5, 6, 7))
    again = router.place(turn, [0, 1])
    assert again.engine == first.engine
    assert again.prompt < 100, "the answer is cached too"


def test_prefixes_of_another_salt_or_adapter_are_not_taken_for_the_same() -> None:
    router = router_of()
    router.ended(router.place(request(prompt(640)), [0, 1]), complete=False)
    assert router.place(request(prompt(640)), [0, 1]).prompt == 0
    assert router.place(request(prompt(640), salt="x"), [0, 1]).prompt == 640


def test_an_engine_that_is_too_busy_loses_a_session() -> None:
    router = router_of()
    home = router.place(request(prompt(640), max_tokens=1), [0, 1]).engine
    for i in range(1, 9):
        router.place(request(prompt(2000, i * 10_000), max_tokens=1), [home])
    assert router.place(request(prompt(640), max_tokens=1), [0, 1]).engine != home


def test_what_an_engine_lost_is_forgotten() -> None:
    router = router_of()
    placed = router.place(request(prompt(640)), [1])
    router.ended(placed, complete=False)
    router.forget(1)
    assert router.place(request(prompt(640)), [1]).prompt == 640


def test_a_router_remembers_no_more_than_a_cache_holds() -> None:
    router = router_of(blocks=40)  # ten chunks
    old, new = request(prompt(640)), request(prompt(320, 5000))
    for each in (old, new):
        router.ended(router.place(each, [0]), complete=False)
    assert router.place(new, [0]).prompt == 0
    assert router.place(old, [0]).prompt == 320, "its end was forgotten"


def test_without_a_prefix_cache_nothing_is_expected_to_be_found() -> None:
    router = router_of(blocks=0)
    router.place(request(prompt(640)), [0])
    assert router.place(request(prompt(640)), [0]).prompt == 640


@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["place", "token", "end", "drop", "forget"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_an_account_is_even_once_all_requests_have_ended(acts: list[tuple[str, int]]) -> None:
    router, live = router_of(3, blocks=64), list[Placed]()
    for act, i in acts:
        if act == "place":
            able = [e for e in range(3) if e != i % 4]
            live.append(router.place(request(prompt(50 * i, i % 3), max_tokens=i + 1), able))
        elif act == "forget":
            router.forget(i % 3)
        elif live:
            placed = live[i % len(live)]
            if act == "token":
                router.took(placed, i)
            else:
                router.ended(placed, complete=act == "end")
                live.remove(placed)
        for load in router._loads:
            assert load.prompts >= 0 and load.answers >= 0 and len(load.keys) <= 16
    for placed in live:
        router.ended(placed)
    assert all((load.prompts, load.answers) == (0, 0) for load in router._loads)
