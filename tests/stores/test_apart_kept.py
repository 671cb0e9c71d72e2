"""Tiers beside a link: what came from another instance, and what is computed for one, is kept."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_apart import (
    GREEDY,
    PROMPTS,
    SEEDED,
    SHORT,
    Prefiller,
    ask,
    counted,
    joined,
    run,
    tcp_url,
    token_file,
    wait_for,
)
from tests.stores.test_stored_caches import CASES, load, toy_of

from inferno.core.engine import Engine
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import alike

DRAW = random.Random(11)
TURN = [DRAW.randrange(100) for _ in range(30)]


@pytest.fixture
def url() -> str:
    return f"shm://test-{secrets.token_hex(6)}"


@contextmanager
def decoding(ref: str, url: str, **options: Any) -> Iterator[Engine]:
    engine = load(ref, decode_with=url, **(SHORT | options))
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def prefilling(ref: str, url: str, **options: Any) -> Iterator[Prefiller]:
    prefiller = Prefiller(ref, url, **options)
    try:
        yield prefiller
    finally:
        prefiller.close()


def forget(engine: Engine) -> None:
    """Let memory lose everything."""
    engine._scheduler._groups.reset()


def whole(prompt: Sequence[int]) -> int:
    """Tokens of the blocks that can be loaded."""
    return (len(prompt) - 1) // 16 * 16


def places(first: EngineOutput) -> tuple[int, int, int]:
    """Return how many tokens were cached: all, those from tiers here, and those of another
    instance.

    Tiers are one number, because blocks that are not yet written to disk come from host memory.
    """
    return first.num_cached, first.num_host + first.num_disk, first.num_remote


Asked = Sequence[tuple[Sequence[int], SamplingParams]]
"""Prompts, each twice: with other parameters the second time."""


def answers_are_kept(
    engine: Engine, asked: Asked, right: Sequence[Sequence[int]], *, again: bool
) -> None:
    """Check answers of an engine that keeps what has come: the first time of each prompt from the
    other instance, unless it was started `again` with the tiers that it had."""
    for i, ((prompt, params), tokens) in enumerate(zip(asked, right, strict=True)):
        forget(engine)
        ids, first = ask(engine, prompt, params)
        assert ids == tokens
        assert first.num_cached == whole(prompt)
        if i % 2 or again:
            assert first.num_remote == 0, "it is kept here"
    stats = engine.stats()
    assert stats.fallbacks == {} and stats.store_lost_parts == 0
    assert stats.linked_prompts == (0 if again else len(asked) // 2)


def answers_come_from_there(
    other: Engine, engine: Engine, asked: Asked, right: Sequence[Sequence[int]]
) -> None:
    """Check answers of an engine that keeps nothing: the other one has kept all."""
    for (prompt, params), tokens in zip(asked, right, strict=True):
        forget(engine)
        ids, first = ask(engine, prompt, params)
        assert ids == tokens and first.num_remote == whole(prompt)
    stats = other.stats()
    assert stats.store_loaded_bytes > 0 and stats.store_lost_parts == 0, "it computes all again"
    assert stats.linked_bytes == engine.stats().linked_bytes > 0


@alike
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_cache_is_kept_at_both_ends(name: str, tmp_path: Path, url: str) -> None:
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    one = load(ref, **case.options)
    prompts = [*PROMPTS, PROMPTS[0][:70] + PROMPTS[1][:40]]
    pairs = [(prompt, params) for prompt in prompts for params in (GREEDY, SEEDED)]
    right = [ask(one, prompt, params)[0] for prompt, params in pairs]
    here, there = (case.options | {"kv_store": str(tmp_path / end)} for end in ("here", "there"))
    for start in range(2):
        with prefilling(ref, url, **there) as prefiller, decoding(ref, url, **here) as engine:
            wait_for(partial(joined, engine))
            answers_are_kept(engine, pairs, right, again=bool(start))
            assert bool(prefiller.engine.stats().linked_bytes) == (not start)
    with prefilling(ref, url, **there) as prefiller, decoding(ref, url, **case.options) as engine:
        wait_for(partial(joined, engine))
        answers_come_from_there(prefiller.engine, engine, pairs, right)


def converse(engine: Engine, prompt: Sequence[int], **given: Any) -> tuple[list[int], EngineOutput]:
    """A turn of which memory loses everything."""
    answer = ask(engine, prompt, **given)
    forget(engine)
    return answer


@pytest.mark.parametrize(
    "tier",
    [
        pytest.param("host", marks=pytest.mark.slow),
        pytest.param("disk", marks=pytest.mark.slow),
        "both",
    ],
)
def test_a_second_turn_is_found_in_the_tiers_and_not_sent_out(
    tier: str, tmp_path: Path, url: str
) -> None:
    one = load("demo")
    options: dict[str, Any] = {"cpu_mem_fold": 1.0} if tier != "disk" else {}
    options |= {"kv_store": str(tmp_path)} if tier != "host" else {}
    with prefilling("demo", url), decoding("demo", url, **options, pd_min_uncached=48) as engine:
        wait_for(partial(joined, engine))
        first = PROMPTS[0]
        answer, output = converse(engine, first)
        assert answer == ask(one, first)[0] and places(output) == (96, 0, 96)
        second = [*first, *answer, *TURN[:20]]
        cached = whole([*first, *answer])  # what was decoded here is kept too
        tokens, output = converse(engine, second)
        assert tokens == ask(one, second)[0]
        assert output.num_cached == cached == 112 and output.num_remote == 0
        assert output.num_host + output.num_disk == 112
        assert tier == "disk" or output.num_disk == 0, "memory is read before the disk"
        assert engine.stats().linked_prompts == 1


def test_what_a_long_turn_adds_comes_and_the_rest_is_kept(tmp_path: Path, url: str) -> None:
    one = load("demo")
    long = [*PROMPTS[0][:60], *PROMPTS[1]]
    with (
        prefilling("demo", url) as prefiller,
        decoding("demo", url, kv_store=str(tmp_path)) as engine,
    ):
        wait_for(partial(joined, engine))
        converse(engine, PROMPTS[0][:60])
        sent = prefiller.engine.stats().linked_bytes
        tokens, output = converse(engine, long[:150])
        assert tokens == ask(one, long[:150])[0]
        assert places(output) == (144, 48, 96)
        assert prefiller.engine.stats().linked_bytes == 3 * sent, "what is kept came again"
        assert places(converse(engine, long[:150])[1]) == (144, 144, 0)


def test_a_lost_link_leaves_what_is_kept(tmp_path: Path, url: str) -> None:
    one = load("demo")
    with decoding("demo", url, kv_store=str(tmp_path)) as engine:
        with prefilling("demo", url) as prefiller:
            wait_for(partial(joined, engine))
            converse(engine, PROMPTS[0])
            prefiller.pauses = True
            engine.submit(Request(id="0", token_ids=(*PROMPTS[0], *TURN), params=GREEDY))
            while not engine.stats().linked_prompts == 2:
                engine.step()
        outputs = run(engine)
        right = ask(one, [*PROMPTS[0], *TURN])[0]
        assert [o.token_id for o in outputs] == right
        assert places(counted(outputs)) == (96, 96, 0)
        assert engine.stats().fallbacks == {"lost": 1}
        forget(engine)
        assert places(converse(engine, PROMPTS[0])[1]) == (96, 96, 0), "not worth a link"
        assert ask(engine, PROMPTS[1])[0] == ask(one, PROMPTS[1])[0]


def test_a_damaged_file_comes_over_the_link_again(tmp_path: Path, url: str) -> None:
    right = ask(load("demo"), PROMPTS[0])[0]
    for start in range(3):
        with prefilling("demo", url), decoding("demo", url, kv_store=str(tmp_path)) as engine:
            wait_for(partial(joined, engine))
            tokens, first = converse(engine, PROMPTS[0])
            assert tokens == right and first.num_cached == 96
            assert (first.num_remote > 0) == (start < 2)
            assert (engine.stats().store_lost_parts > 0) == (start == 1)
        if start == 0:
            [path] = tmp_path.glob("*/*/parts")
            path.write_bytes(bytes(255 - each for each in path.read_bytes()))


@pytest.mark.parametrize("end", [pytest.param("here", marks=pytest.mark.slow), "there"])
def test_both_go_on_after_sleep(end: str, tmp_path: Path, url: str) -> None:
    right = ask(load("demo"), PROMPTS[0])[0]
    folders: dict[str, dict[str, Any]] = {"here": {}, "there": {}}
    folders[end] = {"kv_store": str(tmp_path)}
    with (
        prefilling("demo", url, **folders["there"]) as prefiller,
        decoding("demo", url, **folders["here"]) as engine,
    ):
        wait_for(partial(joined, engine))
        assert places(ask(engine, PROMPTS[0])[1]) == (96, 0, 96)
        sleeper = engine if end == "here" else prefiller.engine
        prefiller.pauses = True
        prefiller.paused.wait()
        sleeper.sleep()
        sleeper.wake_up()
        prefiller.pauses = False
        wait_for(partial(joined, engine))
        forget(engine)
        tokens, first = ask(engine, PROMPTS[0])
        assert tokens == right
        assert places(first) == ((96, 96, 0) if end == "here" else (96, 0, 96))
        if end == "there":
            assert prefiller.engine.stats().store_loaded_bytes > 0
        assert places(ask(engine, PROMPTS[1])[1]) == (80, 0, 80)


def ten_conversations(engine: Engine, one: Engine) -> None:
    """Check three turns of each, all at once, by the answers of an engine alone."""
    draw = random.Random(5)
    prompts = [[draw.randrange(100) for _ in range(draw.randrange(30, 110))] for _ in range(10)]
    for _ in range(3):
        forget(engine)
        for i, prompt in enumerate(prompts):
            engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=SEEDED))
        engine.submit(Request(id="dropped", token_ids=tuple(prompts[0][:-5]), params=GREEDY))
        outputs = engine.step()
        engine.abort("dropped")
        outputs += run(engine)
        answers = [
            [o.token_id for o in outputs if o.request_id == str(i) and o.token_id is not None]
            for i in range(len(prompts))
        ]
        assert answers == [ask(one, prompt, SEEDED)[0] for prompt in prompts]
        prompts = [[*p, *a, *TURN[:5]] for p, a in zip(prompts, answers, strict=True)]
    assert engine.stats().store_lost_parts == 0 and engine.stats().fallbacks == {}


def test_many_conversations_at_once(tmp_path: Path, url: str) -> None:
    here, there = ({"kv_store": str(tmp_path / end), "cpu_mem_fold": 0.1} for end in "ab")
    with (
        prefilling("demo", url, **there) as prefiller,
        decoding("demo", url, **here) as engine,
    ):
        wait_for(partial(joined, engine))
        ten_conversations(engine, load("demo"))
        store: Any = engine._store
        link = store.stacked.link_index
        assert not link._near and not link._coming and not store.stacked._awaited
        assert not store._sent and not store.fetching
        there_: Any = prefiller.engine._store
        wait_for(lambda: not there_.stacked.link_index._open)


def test_blocks_are_kept_over_tcp_too(tmp_path: Path) -> None:
    url, token = tcp_url(), token_file(tmp_path / "token")
    with (
        prefilling("demo", url, pd_token_file=token),
        decoding("demo", url, pd_token_file=token, cpu_mem_fold=1.0) as engine,
    ):
        wait_for(partial(joined, engine))
        assert places(converse(engine, PROMPTS[0])[1]) == (96, 0, 96)
        assert places(converse(engine, PROMPTS[0])[1]) == (96, 96, 0)


def test_salts_keep_their_blocks_apart(url: str) -> None:
    with prefilling("demo", url), decoding("demo", url, cpu_mem_fold=1.0) as engine:
        wait_for(partial(joined, engine))
        for salt, remote in (("a", 96), ("b", 96), ("a", 0)):
            assert converse(engine, PROMPTS[0], cache_salt=salt)[1].num_remote == remote


def test_what_is_kept_stays_while_the_rest_comes(url: str) -> None:
    one = load("demo")
    options: dict[str, Any] = {"cpu_mem_fold": 0.2, "pd_min_tokens": 50}
    with prefilling("demo", url) as prefiller, decoding("demo", url, **options) as engine:
        wait_for(partial(joined, engine))
        converse(engine, PROMPTS[0][:60])
        prefiller.pauses = True
        long = [*PROMPTS[0][:60], *PROMPTS[1]]
        engine.submit(Request(id="long", token_ids=tuple(long), params=GREEDY))
        while not engine.stats().linked_prompts == 2:
            engine.step()
        draw = random.Random(9)
        for i in range(8):  # these fill the tier
            other = [draw.randrange(100) for _ in range(49)]
            engine.submit(Request(id=str(i), token_ids=tuple(other), params=GREEDY))
        outputs = list[EngineOutput]()
        while len({o.request_id for o in outputs if o.finish}) < 8:
            outputs += engine.step()
        store: Any = engine._store
        tier = store.stacked.tiers_index
        tier.poll()  # it makes room
        assert tier.usage.host_bytes > tier.need.host_limit >= tier._idle_bytes, "it is not full"
        prefiller.pauses = False
        outputs = run(engine)
        assert [o.token_id for o in outputs] == ask(one, long)[0]
        assert places(counted(outputs)) == (144, 48, 96)
