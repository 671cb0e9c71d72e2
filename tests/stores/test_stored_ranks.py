"""Blocks of which each rank keeps its part: the same tokens as one process, as much cached."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from tests.stores.test_stored_caches import CASES, LONG, ask, begin, tiers_of, toy_of

from inferno.catalog import load_catalog
from inferno.core.engine import Engine
from inferno.errors import EngineDeadError, OptionError
from inferno.plan import Options, Plan, open_model, resolve, with_num_blocks
from inferno.process.client import EngineClient
from inferno.process.ranks.keeping_blocks import KeptBlocks
from inferno.process.ranks.keeping_links import KeptLink
from inferno.process.ranks.leading import LeadingHome
from inferno.process.ranks.sharing_blocks import SharedStore
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores.storing import Storing
from inferno.testing import alike
from inferno.testing.thread_ranks import GREEDY, ThreadRanks, load_shared, tokens_of
from inferno.testing.thread_ranks import answers as together
from inferno.testing.tiny import without_kernels

offload = pytest.importorskip("inferno_offload.index")
ENTRY_BYTES: int = offload.ENTRY_BYTES

draw = random.Random(1)
BASE = [draw.randrange(100) for _ in range(100)]
DIVERGING = BASE[:70] + [draw.randrange(100) for _ in range(30)]
OTHER = BASE[:70] + [draw.randrange(100) for _ in range(40)]
PROMPTS = [BASE, OTHER, BASE[:35], [*BASE, 3, 5, 7, 9]]


def load(ref: str = "demo", ranks: int = 2, pp: int = 1, **options: Any) -> Engine:
    """Load a model of several ranks in each of so many stages, which are threads, or of one."""
    given: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 160}
    given |= {"device": "cpu", "threads": 1, "memory": "2GiB", "block_size": 16}
    catalog = load_catalog()
    with open_model(ref, Options(**(given | options), tp=ranks, pp=pp), catalog) as opened:
        threads = ThreadRanks(ranks * pp, catalog, pp)
        home = LeadingHome.starting(threads.start, threads.communicator)
        engine = Engine.load(opened, home_of=home if ranks * pp > 1 else None)
    if isinstance(engine._store, Storing):
        engine._store.sizes = ()  # it loads what it can, however busy the machine is
    return engine


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    """The tokens of one process that keeps nothing."""
    engine = load(ranks=1, dtype="float32", cache_policy="none")
    tokens = [ask(engine, prompt)[0] for prompt in PROMPTS]
    engine.close()
    return tokens


def answers(prompts: Sequence[Sequence[int]], **options: Any) -> list[tuple[list[int], int]]:
    engine = load(**{"dtype": "float32", **options})
    results = [ask(engine, prompt) for prompt in prompts]
    engine.close()
    return results


@alike
@pytest.mark.parametrize("name", ["float32", "int8", "latent", "windows between", "states"])
def test_a_cache_comes_back_after_a_restart(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    alone = load(ref, 1, **case.options, cache_policy="none")
    right = [ask(alone, prompt)[0] for prompt in PROMPTS]
    alone.close()
    stored = case.options | {"ref": ref, "kv_store": str(tmp_path / "kv")}
    [(tokens, cached), _] = answers([BASE, DIVERGING], **stored)
    assert tokens == right[0] and not cached
    results = [answers([prompt], **stored)[0] for prompt in PROMPTS]
    assert [tokens for tokens, _ in results] == right
    assert tuple(cached for _, cached in results) == case.cached


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_keep_their_parts_too(
    ranks: int, tmp_path: Path, right: list[list[int]]
) -> None:
    for cached in (0, 96):
        results = answers(PROMPTS, ranks=ranks, kv_store=str(tmp_path))
        assert [tokens for tokens, _ in results] == right and results[0][1] == cached


def damaged(folder: Path) -> None:
    for path in folder.glob("*/*/parts"):
        data = bytearray(path.read_bytes())
        path.write_bytes(bytes(byte ^ 0x55 for byte in data))


@alike
@pytest.mark.parametrize("harm", [damaged, shutil.rmtree], ids=["damaged", "removed"])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_has_lost_is_computed_again_by_all(
    rank: int, harm: Callable[[Path], object], tmp_path: Path, right: list[list[int]]
) -> None:
    answers(PROMPTS, kv_store=str(tmp_path))
    harm(tmp_path / f"rank-{rank}")
    engine = load(dtype="float32", kv_store=str(tmp_path))
    assert ask(engine, BASE) == (right[0], 0)
    lost = engine.stats().store_lost_parts
    assert lost > 0 or (rank == 0 and harm is shutil.rmtree), "the first rank knows what it has"
    engine.close()
    assert answers(PROMPTS[-1:], kv_store=str(tmp_path)) == [(right[-1], 96)], "saved again by all"


@pytest.mark.slow
def test_another_number_of_ranks_shares_nothing(tmp_path: Path) -> None:
    def cached(ranks: int) -> int:
        return answers([BASE], ranks=ranks, kv_store=str(tmp_path))[0][1]

    assert [cached(ranks) for ranks in (2, 4, 1, 2, 4, 1)] == [0, 0, 0, 96, 96, 96]


def test_blocks_that_left_memory_come_back_from_each_rank_s_host_memory(
    right: list[list[int]],
) -> None:
    engine = load(dtype="float32", cpu_mem_fold=1.0)
    assert [ask(engine, prompt)[0] for prompt in PROMPTS] == right
    engine._scheduler._groups.reset()
    assert ask(engine, BASE) == (right[0], 96)
    stats = engine.stats()
    assert 0 < stats.store_loaded_bytes <= stats.store_saved_bytes == stats.store_host_bytes
    assert not stats.store_lost_parts
    engine.close()


def test_what_left_one_rank_s_host_memory_is_a_miss_for_all(
    right: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = list[KeptBlocks]()

    def kept(built: Any) -> KeptBlocks:
        followers.append(KeptBlocks(*built))
        return followers[-1]

    monkeypatch.setattr(KeptLink, "of", kept)
    engine = load(dtype="float32", cpu_mem_fold=1.0)
    assert isinstance(engine._store.index, SharedStore)
    inner = engine._store.index.index
    assert ask(engine, BASE) == (right[0], 0)
    engine._scheduler._groups.reset()
    [follower] = followers
    stored: Any = inner
    for key in [*stored._groups]:
        follower.index.drop(key)
    assert ask(engine, BASE) == (right[0], 0)
    assert engine.stats().store_lost_parts > 0
    engine._scheduler._groups.reset()
    assert ask(engine, BASE) == (right[0], 96), "it was saved again"
    engine.close()


def test_outputs_say_which_tier_cached_tokens_came_from(tmp_path: Path) -> None:
    options: dict[str, Any] = {"kv_store": str(tmp_path), "cpu_mem_fold": 1.0}

    engine = load(**options)
    assert [tiers_of(engine) for _ in range(2)] == [(0, 0, 0), (80, 0, 0)]
    engine._scheduler._groups.reset()
    assert [tiers_of(engine) for _ in range(2)] == [(80, 80, 0), (80, 0, 0)]
    engine.close()
    engine = load(**options)
    assert [tiers_of(engine) for _ in range(2)] == [(80, 0, 80), (80, 0, 0)]
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["host", "disk"])
def test_sequences_that_gave_way_come_back_from_the_store(store: str, tmp_path: Path) -> None:
    """Blocks are saved, evicted and loaded in every step; nothing is held at the end."""
    catalog = without_kernels(load_catalog())
    prompts = [[(7 * i + j * j) % 100 for j in range(40 + 10 * i)] for i in range(6)]
    params = evolve(GREEDY, max_tokens=40)
    options = {"cpu_mem_fold": 2.0} if store == "host" else {"kv_store": str(tmp_path)}

    def tight(plan: Plan) -> Plan:
        return evolve(plan, groups=with_num_blocks(plan.groups, 14))

    def turns(engine: Engine) -> list[list[list[int | None]]]:
        return [tokens_of(together(engine, prompts, params)) for _ in range(3)]

    alone = load_shared("demo", catalog, 1)
    right = turns(alone)
    alone.close()
    engine = load_shared("demo", catalog, plan=tight, **options)
    storing = engine._store
    assert isinstance(storing, Storing) and isinstance(storing.index, SharedStore)
    storing.sizes = ()
    assert turns(engine) == right
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.store_loaded_bytes > 0 == stats.store_lost_parts
    assert not storing.index._holders and not storing.index._fetches
    engine.close()


def test_sleep_and_other_weights_close_and_open_all_stores(
    tmp_path: Path, right: list[list[int]]
) -> None:
    engine = load(dtype="float32", kv_store=str(tmp_path))
    assert ask(engine, BASE) == (right[0], 0)
    engine.sleep()
    engine.wake_up()
    assert ask(engine, BASE) == (right[0], 96)
    engine.close()
    assert answers(PROMPTS[-1:], kv_store=str(tmp_path)) == [(right[-1], 96)]


def test_a_rank_whose_folder_is_in_use_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    engine = load(dtype="float32", kv_store=str(tmp_path))
    engine.close()
    [lock] = (tmp_path / "rank-1").glob("*/lock")
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OptionError, match="rank 1: the blocks in .*rank-1.* are in use"):
            load(dtype="float32", kv_store=str(tmp_path))


def test_an_idle_engine_that_waits_for_parts_notices_the_end_of_a_rank(tmp_path: Path) -> None:
    answers([BASE], kv_store=str(tmp_path))
    engine = load(dtype="float32", kv_store=str(tmp_path))
    runner: Any = engine._runner
    runner._group._processes[1].kill()
    with pytest.raises(EngineDeadError, match="rank 1"):
        ask(engine, BASE)
    with suppress(EngineDeadError):
        engine.close()


@pytest.mark.parametrize("shape", [{"ranks": 2}, {"ranks": 1, "pp": 2}], ids=["tp", "pp"])
@pytest.mark.parametrize("max_tokens", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_ranks_that_stop_after_a_token_save_all_full_blocks(
    shape: dict[str, Any], max_tokens: int, tmp_path: Path
) -> None:
    engine = load(**shape, dtype="float32", kv_store=str(tmp_path))
    begin(engine, max_tokens)
    engine.close()
    assert answers([[*LONG, 0]], **shape, kv_store=str(tmp_path))[0][1] == 96


def entries(index: Path) -> int:
    """How many blocks of one group were written."""
    return index.stat().st_size // ENTRY_BYTES


@pytest.mark.slow
def test_processes_that_were_killed_find_their_blocks_again(tmp_path: Path) -> None:
    """Processes, where the others are threads: rank 1 is killed, and both are started anew."""
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "memory": "2GiB"}
    plan = resolve("demo", Options(**options, tp=2, kv_store=str(tmp_path)))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    async def asked(client: EngineClient) -> tuple[list[int | None], int]:
        stream = client.submit(Request(id="0", token_ids=tuple(BASE), params=params))
        outputs = [output async for batch in stream for output in batch]
        return [output.token_id for output in outputs], outputs[0].num_cached

    async def body() -> None:
        client = EngineClient(plan)
        await client.start()
        tokens, cached = await asked(client)
        assert not cached
        async with asyncio.timeout(60):
            while sum(map(entries, tmp_path.glob("rank-*/*/data/index"))) < 2 * 6:
                await asyncio.sleep(0.05)
        followers = [
            int(child)
            for each in Path(f"/proc/{client.pid}/task").glob("*/children")
            for child in each.read_text().split()
            if b"process.ranks" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        [rank] = followers
        os.kill(rank, signal.SIGKILL)
        async with asyncio.timeout(60):
            while not (client.restarts and client.alive):
                await asyncio.sleep(0.05)
        assert await asked(client) == (tokens, 96)
        await client.close()

    asyncio.run(body())


def test_ranks_share_the_folder_s_limit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "kv_store": str(tmp_path), "kv_store_size": "8GiB"}
    store = resolve("demo", Options(**options, tp=2)).store
    assert store is not None and store.folder_limit == 4 << 30
    assert store.folder_of(1) == tmp_path / "rank-1"


@pytest.fixture(autouse=True)
def no_threads_are_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("inferno rank"):
            thread.join(10)
