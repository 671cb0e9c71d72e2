"""Tiers beside a link, of instances with several ranks: each keeps and pulls its part of what came
from another instance or is computed for one, and the tokens are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_apart import GREEDY, PROMPTS, SEEDED, ask, counted, run, wait_for
from tests.stores.test_apart_kept import (
    TURN,
    answers_are_kept,
    answers_come_from_there,
    converse,
    places,
    ten_conversations,
    whole,
)
from tests.stores.test_apart_ranks import apart, links, plugin_of, right, url
from tests.stores.test_stored_caches import CASES, toy_of
from tests.stores.test_stored_ranks import load

from inferno.core.engine import Engine
from inferno.process.ranks.keeping_links import KeptLink
from inferno.request.requests import Request
from inferno.testing import alike

__all__ = ["links", "right", "url"]


@alike
@pytest.mark.parametrize(
    ("name", "pp"),
    [
        ("float32", 1),
        ("int8", 1),
        ("windows between", 1),
        ("states", 1),
        ("states", 2),
        ("windows between", 2),
    ],
)
def test_every_kind_of_cache_is_kept_by_all_ranks_of_both_ends(
    name: str, pp: int, tmp_path: Path, url: str, links: list[KeptLink]
) -> None:
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    options: dict[str, Any] = {**case.options, "dtype": "float32"}
    one = load(ref, 2 if name == "int8" else 1, **options)
    prompts = [*PROMPTS, PROMPTS[0][:70] + PROMPTS[1][:40]]
    pairs = [(prompt, params) for prompt in prompts for params in (GREEDY, SEEDED)]
    right = [ask(one, prompt, params)[0] for prompt, params in pairs]
    one.close()
    options |= {"ranks": 3 - pp, "pp": pp}
    here, there = ({"kv_store": str(tmp_path / end)} for end in ("here", "there"))
    for start in range(2):
        with apart(links, ref, url, there=there, here=here, **options) as (prefiller, engine):
            answers_are_kept(engine, pairs, right, again=bool(start))
        links.clear()
    with apart(links, ref, url, there=there, **options) as (prefiller, engine):
        answers_come_from_there(prefiller.engine, engine, pairs, right)


@pytest.mark.parametrize("pp", [1, 2])
def test_a_second_turn_is_found_in_the_tiers_of_all_ranks(
    pp: int, tmp_path: Path, url: str, links: list[KeptLink]
) -> None:
    one = load("demo", 1, dtype="float32")
    here = {"cpu_mem_fold": 1.0, "kv_store": str(tmp_path), "pd_min_uncached": 48}
    ranks: dict[str, Any] = {"ranks": 3 - pp, "pp": pp}
    with apart(links, "demo", url, here=here, dtype="float32", **ranks) as (_, engine):
        first = PROMPTS[0]
        answer, output = converse(engine, first)
        assert answer == ask(one, first)[0] and places(output) == (96, 0, 96)
        second = [*first, *answer, *TURN[:20]]
        tokens, output = converse(engine, second)
        assert tokens == ask(one, second)[0]
        assert places(output) == (112, 112, 0)
        assert engine.stats().linked_prompts == 1
        long, kept = [*second[:66], *PROMPTS[1][:70]], 64
        tokens, output = converse(engine, long)
        assert tokens == ask(one, long)[0]
        assert places(output) == (whole(long), kept, whole(long) - kept), "the rest comes"
        assert engine.stats().fallbacks == {}


def test_what_one_rank_has_lost_comes_over_the_link_and_is_kept_again(
    tmp_path: Path, url: str, links: list[KeptLink], right: list[list[int]]
) -> None:
    here = {"kv_store": str(tmp_path)}
    for start in range(3):
        with apart(links, "demo", url, here=here, dtype="float32") as (_, engine):
            tokens, first = converse(engine, PROMPTS[0])
            assert tokens == right[0] and first.num_cached == 96
            assert (first.num_remote > 0) == (start < 2)
            assert (engine.stats().store_lost_parts > 0) == (start == 1)
            assert places(converse(engine, PROMPTS[0])[1]) == (96, 96, 0)
        links.clear()
        if start == 0:
            [path] = tmp_path.glob("rank-1/*/*/parts")
            path.write_bytes(bytes(255 - each for each in path.read_bytes()))


def test_a_link_that_one_rank_loses_leaves_what_is_kept(
    tmp_path: Path, url: str, links: list[KeptLink]
) -> None:
    one = load("demo", 1, dtype="float32")
    here = {"kv_store": str(tmp_path)}
    with apart(links, "demo", url, here=here, dtype="float32") as (prefiller, engine):
        converse(engine, PROMPTS[0])
        prefiller.pauses = True
        engine.submit(Request(id="0", token_ids=(*PROMPTS[0], *TURN), params=GREEDY))
        while not engine.stats().linked_prompts == 2:
            engine.step()
        [client] = [end.client for each in links if hasattr(end := plugin_of(each), "client")]
        client._lose("lost")
        outputs = run(engine)
        assert [o.token_id for o in outputs] == ask(one, [*PROMPTS[0], *TURN])[0]
        assert places(counted(outputs)) == (96, 96, 0)
        assert engine.stats().fallbacks == {"rank": 1}
        prefiller.pauses = False
        nothing_is_held(engine)


@pytest.mark.parametrize("pp", [1, 2])
def test_many_conversations_at_once(
    pp: int, tmp_path: Path, url: str, links: list[KeptLink]
) -> None:
    here, there = ({"kv_store": str(tmp_path / end), "cpu_mem_fold": 0.1} for end in "ab")
    ranks: dict[str, Any] = {"ranks": 3 - pp, "pp": pp, "dtype": "float32"}
    with apart(links, "demo", url, here=here, there=there, **ranks) as (prefiller, engine):
        ten_conversations(engine, load("demo", 1, dtype="float32"))
        nothing_is_held(engine)
        link = prefiller.link
        wait_for(lambda: not (link._asked or link._ranks or link._begun or link._ending))
        ends = [plugin_of(each) for each in (engine._store.stacked.link_index, link, *links)]  # type: ignore[attr-defined]
        names = ("_open", "_wanted", "_near", "_coming", "_by_number", "_held")
        wait_for(lambda: not any(getattr(end, name, None) for end in ends for name in names))


def nothing_is_held(engine: Engine) -> None:
    store: Any = engine._store
    assert not store.stacked._awaited and not store._sent and not store.fetching
    for each in (store.stacked.tiers_index, store.stacked.link_index):
        assert not each._fetches and not each._holders and not each._held
