"""Several instances compute prompts for one, each of them of two ranks: all ranks go from one
instance to the next together."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.stores.test_apart import GREEDY, PROMPTS, SHORT, ask, counted, run, wait_for
from tests.stores.test_apart_ranks import (
    Prefiller,
    link_of,
    links,
    nothing_is_left,
    plugin_of,
    remote,
)
from tests.stores.test_stored_ranks import load

from inferno.core.engine import Engine
from inferno.process.ranks.keeping_links import KeptLink
from inferno.request.requests import EngineOutput, Request

__all__ = ["links"]
pytest.importorskip("inferno_disaggregated")


@contextmanager
def several(
    links: list[KeptLink], **options: Any
) -> Iterator[tuple[Prefiller, Prefiller, Engine, tuple[str, str]]]:
    name = f"shm://test-{secrets.token_hex(6)}"
    urls = f"{name}-a", f"{name}-b"
    given: dict[str, Any] = {"dtype": "float32"} | options
    one, other = (Prefiller("demo", url, **given) for url in urls)
    engine = load("demo", decode_with=",".join(urls), **given, **SHORT)
    wait_for(lambda: all(client.joined for client in all_clients(engine, links)))
    try:
        yield one, other, engine, urls
    finally:
        engine.close()
        for each in (one, other):
            each.close()


def all_clients(engine: Engine, links: list[KeptLink]) -> list[Any]:
    ends = [plugin_of(each) for each in (link_of(engine), *links)]
    return [each.client for end in ends for each in getattr(end, "instances", ())]


def right() -> list[list[int]]:
    one = load("demo", 1, dtype="float32")
    return [ask(one, prompt)[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "shared", [{}, pytest.param({"ranks": 1, "pp": 2}, marks=pytest.mark.slow)]
)
def test_prompts_are_shared_out_and_one_instance_may_end(
    shared: dict[str, Any], links: list[KeptLink]
) -> None:
    expected = [(tokens, remote(prompt)) for tokens, prompt in zip(right(), PROMPTS, strict=True)]
    with several(links, **shared) as (one, other, engine, urls):

        def begin() -> None:
            engine._scheduler._groups.reset()
            for i, prompt in enumerate(PROMPTS):
                engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))

        def answers() -> list[tuple[list[int | None], int]]:
            outputs = run(engine)
            mine = [[o for o in outputs if o.request_id == str(i)] for i in range(len(PROMPTS))]
            return [([o.token_id for o in each], counted(each).num_remote or 0) for each in mine]

        begin()
        assert answers() == expected
        prompts = [each.engine.stats().linked_prompts for each in (one, other)]
        assert all(prompts) and sum(prompts) == 3
        one.pauses = True
        time.sleep(0.1)
        begin()
        engine.step()
        one.close()
        assert answers() == expected
        stats = engine.stats()
        assert stats.fallbacks == {}
        assert sum(stats.instances[urls[0]].failures.values()) == prompts[0]
        assert [each.connected for each in stats.instances.values()] == [False, True]
        nothing_is_left(other, engine, links[1:])  # the first one's follower has ended


def test_an_instance_that_one_rank_has_lost_is_passed_over(links: list[KeptLink]) -> None:
    with several(links) as (one, other, engine, urls):
        follower = next(
            client for client in all_clients(engine, links) if client.url.endswith("a.1")
        )
        follower.joined = False
        for tokens, prompt in zip(right(), PROMPTS, strict=True):
            engine._scheduler._groups.reset()
            ids, first = ask(engine, prompt)
            assert ids == tokens and first.num_remote == remote(prompt)
        stats = engine.stats()
        assert stats.fallbacks == {} and not one.engine.stats().linked_prompts
        assert stats.instances[urls[0]].failures.keys() == {"rank"}
        nothing_is_left(other, engine, links)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"ranks": 1, "pp": 2}, {"cpu_mem_fold": 2.0}],
    ids=["ranks", "stages", "tiers"],
)
def test_links_that_break_at_random_cost_no_token(
    options: dict[str, Any], links: list[KeptLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferno_disaggregated.client._AGAIN", 0.05)
    draw, one = random.Random(5), load("demo", 1, dtype="float32")
    prompts = [[draw.randrange(100) for _ in range(draw.randrange(40, 150))] for _ in range(9)]
    prompts += [prompt[:64] + [draw.randrange(100) for _ in range(40)] for prompt in prompts[:3]]
    right, came = [ask(one, prompt)[0] for prompt in prompts], 0
    with several(links, **options) as (*both, engine, _):
        ends = all_clients(engine, links)
        for _ in range(20):
            engine._scheduler._groups.reset()
            chosen, outputs = draw.sample(range(len(prompts)), 5), list[EngineOutput]()
            for i in chosen:
                engine.submit(Request(id=str(i), token_ids=tuple(prompts[i]), params=GREEDY))
            dropped = draw.choice(chosen)
            while engine.busy:
                outputs += engine.step()
                engine.check()
                if draw.random() < 0.05:
                    draw.choice(ends)._lose("lost")
                if draw.random() < 0.01:
                    engine.abort(str(dropped))
                for each in both:
                    each.pauses = draw.random() < (0.5 if each.pauses else 0.02)
            for i in {*chosen} - {dropped}:
                mine = [output for output in outputs if output.request_id == str(i)]
                assert [output.token_id for output in mine] == right[i]
                came += counted(mine).num_remote or 0
        assert came and not any(each.error for each in both)
        wait_for(lambda: all(client.joined for client in ends))
        if "cpu_mem_fold" not in options:
            for each in both:
                nothing_is_left(each, engine, links)
