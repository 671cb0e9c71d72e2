"""Blocks of engines beside each other: each writes its own, and reads those of all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from attrs import evolve
from tests.stores.test_stored_caches import LONG, ask, begin
from tests.stores.test_stored_ranks import BASE, entries

from inferno import host
from inferno.catalog import load_catalog
from inferno.cli.tiers import sections
from inferno.core.engine import Engine
from inferno.plan import Options, open_model, plan_from_json, plan_of_engine, plan_to_json, resolve
from inferno.process.client import EngineClient
from inferno.process.engines.client import EnginesClient
from inferno.process.ranks.leading import LeadingHome
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores.keys import extend_keys
from inferno.stores.storing import Storing
from inferno.testing.thread_ranks import ThreadRanks

pytest.importorskip("inferno_offload")
LIMITS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 160,
    "threads": 1,
    "memory": "3GiB",
    "block_size": 16,
}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 4)


def load(engine: int, **options: Any) -> Engine:
    """Load one of two engines, or more, in this process; its ranks are threads."""
    catalog = load_catalog()
    with open_model("demo", Options(**{**LIMITS, "dp": 2, **options}), catalog) as opened:
        opened = evolve(opened, plan=plan_of_engine(opened.plan, engine))
        ranks = opened.plan.ranks
        home = None
        if ranks is not None:
            threads = ThreadRanks(ranks.count, catalog, ranks.stages)
            home = LeadingHome.starting(threads.start, threads.communicator)
        loaded = Engine.load(opened, home_of=home)
    assert isinstance(loaded._store, Storing)
    loaded._store.sizes = ()  # it loads what it can, however busy the machine is
    return loaded


def wait(holds: Callable[[], bool], *engines: Engine) -> None:
    end = monotonic() + 20
    while not holds():
        assert monotonic() < end, "an engine never sees what another one has written"
        for engine in engines:
            engine.rest()


def sees(engine: Engine) -> bool:
    """Whether the blocks of a prompt are in an engine's store, or in what it reads."""
    extend_keys(keys := list[bytes](), BASE, 16)
    index = engine._store.index
    assert index is not None
    return all(index.groups_of(key) for key in keys)


SHARED = [
    pytest.param({}, marks=pytest.mark.slow),
    {"tp": 2},
    pytest.param({"pp": 2}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("shared", SHARED, ids=["alone", "tp", "pp"])
def test_an_engine_loads_what_another_one_has_written(
    shared: dict[str, int], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"kv_store": str(tmp_path), **shared}
    first, second = load(0, **options), load(1, **options)
    tokens, cached = ask(first, BASE)
    assert not cached
    wait(lambda: sees(second), first, second)
    assert ask(second, BASE) == (tokens, 96)
    assert second.stats().store_loaded_bytes > 0 == second.stats().store_lost_parts
    assert not second.stats().store_folder_bytes, "it is not written twice"
    first.close()
    second._scheduler._groups.reset()
    assert ask(second, BASE) == (tokens, 96)
    second.close()
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {"engine-0", "engine-1"}
    if shared:
        assert {path.name for path in (tmp_path / "engine-1").iterdir()} == {"rank-0", "rank-1"}


def test_blocks_are_found_after_a_restart_by_any(tmp_path: Path) -> None:
    first = load(0, kv_store=str(tmp_path))
    tokens, _ = ask(first, BASE)
    first.close()
    for engine in (1, 0):
        again = load(engine, kv_store=str(tmp_path))
        assert ask(again, BASE) == (tokens, 96)
        again.close()


@pytest.mark.parametrize("shared", SHARED, ids=["alone", "tp", "pp"])
def test_an_engine_that_stops_after_a_token_leaves_all_full_blocks_to_the_others(
    shared: dict[str, int], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"kv_store": str(tmp_path), **shared}
    engine = load(0, **options)
    begin(engine)
    engine.close()
    engine = load(1, **options)
    assert ask(engine, [*LONG, 0])[1] == 96
    engine.close()


def test_the_plan_says_whose_folder_is_whose(tmp_path: Path) -> None:
    options = {**LIMITS, "kv_store": str(tmp_path), "kv_store_size": "8GiB"}
    plan = resolve("demo", Options(**options, dp=2, tp=2))
    assert plan.store is not None and plan.store.folder_limit == 2 << 30
    second = plan_from_json(plan_to_json(plan_of_engine(plan, 1))).store
    assert second is not None
    assert second.folder_of(1) == tmp_path / "engine-1" / "rank-1"
    assert second.others(1) == (tmp_path / "engine-0" / "rank-1",)
    [(title, rows)] = sections(plan, None)
    assert title == "Tiers of the cache of an engine's rank"
    assert "engine-0/rank-0, which all engines read" in rows[-1][1]
    lone = resolve("demo", Options(**options)).store
    assert lone is not None and lone.folder_of(None) == tmp_path and not lone.others(None)


def test_folders_of_an_earlier_start_are_read_and_make_room(tmp_path: Path) -> None:
    """Four engines, then two; one of two ranks, then none."""

    def names(paths: Iterable[Path]) -> set[str]:
        return {str(path.relative_to(tmp_path)) for path in paths}

    def needs(**options: Any) -> list[tuple[set[str], set[str]]]:
        plan = resolve("demo", Options(**LIMITS, kv_store=str(tmp_path), **options))
        found = []
        for engine in range(options.get("dp", 1)):
            use = plan_of_engine(plan, engine).store
            assert use is not None
            for rank in range(use.ranks) if use.ranks > 1 else [None]:
                need = use.need(plan.groups, rank)
                found.append((names(need.beside), names(need.former)))
        return found

    for name in ("engine-0", "engine-1", "engine-2", "engine-3", "engine-x"):
        (tmp_path / name).mkdir()
    assert needs(dp=4)[0] == ({"engine-1", "engine-2", "engine-3", "."}, {"."})
    gone = {"engine-2", "engine-3", "."}
    assert needs(dp=2) == [({"engine-1", *gone}, gone), ({"engine-0", *gone}, set())]
    assert needs() == [({f"engine-{i}" for i in range(4)},) * 2]
    (tmp_path / "engine-2" / "rank-1").mkdir()
    assert needs(dp=2)[0] == ({"engine-1", *gone}, {*gone, "engine-2/rank-1"})
    first, second, *_ = needs(dp=2, tp=2)
    assert first[0] == {"engine-1/rank-0"}
    assert first[1] == {"engine-0", "engine-1", *gone, "engine-2/rank-1"}
    assert second == ({"engine-1/rank-1", "engine-2/rank-1"}, set())


def test_blocks_of_an_engine_that_is_no_longer_started_are_found_until_they_make_room(
    tmp_path: Path,
) -> None:
    last = load(3, dp=4, kv_store=str(tmp_path))
    tokens, _ = ask(last, BASE)
    last.close()
    again = load(0, kv_store=str(tmp_path))
    assert ask(again, BASE) == (tokens, 96)
    again.close()
    [kept] = (tmp_path / "engine-3").glob("blocks-*")
    load(1, kv_store=str(tmp_path), kv_store_size="64KiB").close()
    assert kept.exists(), "the first engine removes what is too much"
    load(0, kv_store=str(tmp_path), kv_store_size="64KiB").close()
    assert not kept.exists() and not (tmp_path / "engine-3").exists()


@pytest.mark.slow
def test_processes_read_each_other_s_blocks(tmp_path: Path) -> None:
    plan = resolve("demo", Options(**LIMITS, dp=2, kv_store=str(tmp_path)))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    async def asked(client: EngineClient | EnginesClient, name: str) -> tuple[list[Any], int]:
        stream = client.submit(Request(id=name, token_ids=tuple(BASE), params=params))
        outputs = [output async for batch in stream for output in batch]
        return [output.token_id for output in outputs], outputs[0].num_cached

    async def body() -> None:
        client = EnginesClient(plan)
        await client.start()
        tokens, cached = await asked(client._engines[0], "0")
        assert not cached
        async with asyncio.timeout(60):
            while sum(map(entries, tmp_path.glob("engine-0/*/data/index"))) < 6:
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.5)  # an idle engine looks once a second
        assert await asked(client._engines[1], "1") == (tokens, 96)
        await client.close()

    asyncio.run(body())
