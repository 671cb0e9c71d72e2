"""Blocks of which each pipeline stage keeps the part of its layers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from tests.stores.test_stored_caches import CASES, ask, config_of, toy_of
from tests.stores.test_stored_ranks import (
    BASE,
    DIVERGING,
    PROMPTS,
    answers,
    damaged,
    load,
    no_threads_are_left,
)

from inferno.catalog import load_catalog
from inferno.plan import Options, Plan, open_model, resolve, with_num_blocks
from inferno.process.client import EngineClient
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.sharing_blocks import SharedStore
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores import layouts
from inferno.stores.storing import Storing
from inferno.testing import alike
from inferno.testing.mtp_reference import MTPReference
from inferno.testing.mtp_runs import draft_always, write
from inferno.testing.thread_ranks import GREEDY, load_shared, tokens_of
from inferno.testing.thread_ranks import answers as together
from inferno.testing.tiny import without_kernels

pytest.importorskip("inferno_offload")
__all__ = ["no_threads_are_left"]


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    """The tokens of one process that keeps nothing."""
    engine = load(ranks=1, dtype="float32", cache_policy="none")
    tokens = [ask(engine, prompt)[0] for prompt in PROMPTS]
    engine.close()
    return tokens


@alike
@pytest.mark.parametrize("name", ["float32", "int8", "latent", "windows between", "states"])
def test_a_cache_comes_back_after_a_restart(name: str, tmp_path: Path) -> None:
    """Also of layers that keep nothing of one kind in one of the stages."""
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    alone = load(ref, 1, **case.options, cache_policy="none")
    right = [ask(alone, prompt)[0] for prompt in PROMPTS]
    alone.close()
    shared: dict[str, Any] = {"ref": ref, "ranks": 1, "pp": 2, "kv_store": str(tmp_path / "kv")}
    stored = case.options | shared
    [(tokens, cached), _] = answers([BASE, DIVERGING], **stored)
    assert tokens == right[0] and not cached
    outcomes = [answers([prompt], **stored)[0] for prompt in PROMPTS]
    assert [tokens for tokens, _ in outcomes] == right
    assert tuple(cached for _, cached in outcomes) == case.cached


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stages"), [(1, 3), (1, 4), (2, 2)])
def test_more_stages_keep_their_parts_too(
    ranks: int, stages: int, tmp_path: Path, right: list[list[int]]
) -> None:
    for cached in (0, 96):
        outcomes = answers(PROMPTS, ranks=ranks, pp=stages, kv_store=str(tmp_path))
        assert [tokens for tokens, _ in outcomes] == right and outcomes[0][1] == cached


@pytest.mark.parametrize(
    ("rank", "harm"),
    [
        pytest.param(0, damaged, id="0-damaged"),
        pytest.param(1, shutil.rmtree, id="1-removed"),
        pytest.param(0, shutil.rmtree, id="0-removed", marks=pytest.mark.slow),
        pytest.param(1, damaged, id="1-damaged", marks=pytest.mark.slow),
    ],
)
def test_what_one_stage_has_lost_is_computed_again_by_all(
    rank: int, harm: Callable[[Path], object], tmp_path: Path, right: list[list[int]]
) -> None:
    staged: dict[str, Any] = {"ranks": 1, "pp": 2, "kv_store": str(tmp_path)}
    answers(PROMPTS, **staged)
    harm(tmp_path / f"rank-{rank}")
    engine = load(dtype="float32", **staged)
    assert ask(engine, BASE) == (right[0], 0)
    engine.close()
    assert answers(PROMPTS[-1:], **staged) == [(right[-1], 96)], "saved again by all"


@pytest.mark.slow
def test_stages_and_ranks_share_nothing(tmp_path: Path) -> None:
    def cached(ranks: int, stages: int) -> int:
        return answers([BASE], ranks=ranks, pp=stages, kv_store=str(tmp_path))[0][1]

    kinds = [(2, 1), (1, 2), (1, 1)]
    assert [cached(*each) for each in (*kinds, *kinds)] == [0, 0, 0, 96, 96, 96]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["host", "disk"])
@pytest.mark.parametrize("model", ["demo", "windows between", "states"])
def test_sequences_that_gave_way_come_back_from_the_store(
    model: str, store: str, tmp_path: Path
) -> None:
    """Blocks are saved, evicted and loaded in steps of which several are in flight; nothing is
    held at the end."""
    catalog = without_kernels(load_catalog())
    ref = toy_of(CASES[model].model if model in CASES else model, tmp_path / "toy")
    prompts = [[(7 * i + j * j) % 100 for j in range(40 + 10 * i)] for i in range(6)]
    params = evolve(GREEDY, max_tokens=40)
    options = {"cpu_mem_fold": 2.0} if store == "host" else {"kv_store": str(tmp_path / "kv")}

    def tight(plan: Plan) -> Plan:
        return evolve(plan, groups=with_num_blocks(plan.groups, 14))

    alone = load_shared(ref, catalog, 1, dtype="float32")
    right = [tokens_of(together(alone, prompts, params)) for _ in range(3)]
    alone.close()
    engine = load_shared(ref, catalog, 1, pp=2, plan=tight, dtype="float32", **options)
    storing = engine._store
    assert isinstance(storing, Storing) and isinstance(storing.index, SharedStore)
    storing.sizes = ()
    assert [tokens_of(together(engine, prompts, params)) for _ in range(3)] == right
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.store_loaded_bytes > 0
    assert not storing.index._holders and not storing.index._fetches
    late = storing.index.index
    assert isinstance(late, LateBlocks) and not late._waiting and not late._said
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["host", "disk"])
def test_ranks_that_propose_drafts_together_keep_their_parts(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of the last stage all compute steps later than they were planned."""
    pytest.importorskip("inferno_glm4_moe")
    config = config_of("glm4-moe:TestMTP")
    (reference := tmp_path / "reference").mkdir()
    path = write(tmp_path / "toy", config, MTPReference.of(config).tensors(reference))
    draft_always(monkeypatch)
    catalog = without_kernels(load_catalog())
    prompts = [[(7 * i + j * j) % 100 for j in range(40 + 10 * i)] for i in range(5)]
    params = evolve(GREEDY, max_tokens=30)
    options: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 4, "max_model_len": 160}
    alone = load_shared(path, catalog, 1, **options)
    right = [tokens_of(together(alone, prompts, params)) for _ in range(2)]
    alone.close()

    def tight(plan: Plan) -> Plan:
        return evolve(plan, groups=with_num_blocks(plan.groups, 14))

    kept = {"cpu_mem_fold": 2.0} if store == "host" else {"kv_store": str(tmp_path / "kv")}
    more: dict[str, Any] = {**options, **kept, "pp": 2, "speculative": "mtp"}
    engine = load_shared(path, catalog, 2, plan=tight, **more)
    assert isinstance(storing := engine._store, Storing)
    storing.sizes = ()
    assert [tokens_of(together(engine, prompts, params)) for _ in range(2)] == right
    stats = engine.stats()
    engine.close()
    assert stats.preemptions and stats.draft_tokens and stats.store_loaded_bytes > 0
    assert not stats.store_lost_parts


def test_an_engine_that_closes_keeps_what_its_steps_in_flight_save(
    tmp_path: Path, right: list[list[int]]
) -> None:
    staged: dict[str, Any] = {"dtype": "float32", "ranks": 1, "pp": 2, "kv_store": str(tmp_path)}
    engine = load(**staged)
    params = SamplingParams(temperature=0, max_tokens=8)
    engine.submit(Request(id="0", token_ids=tuple(BASE), params=params))
    saved = 0
    while not saved:
        launched = engine._runner.launch

        def noted(step: Any, *more: Any, launch: Any = launched) -> Any:
            nonlocal saved
            saved += len(step.saves)
            return launch(step, *more)

        engine._runner.launch = noted  # type: ignore[method-assign, assignment]
        engine.step()
        engine._runner.launch = launched  # type: ignore[method-assign]
    engine.close()
    [(tokens, cached)] = answers([BASE], **staged)
    assert tokens == right[0] and cached >= 16 * saved > 0


def test_a_fetch_begins_though_the_steps_in_flight_were_dropped(
    tmp_path: Path, right: list[list[int]]
) -> None:
    staged: dict[str, Any] = {"dtype": "float32", "ranks": 1, "pp": 2, "kv_store": str(tmp_path)}
    answers([BASE], **staged)
    engine = load(**staged)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    for i in range(4):
        engine.submit(Request(id=str(i), token_ids=(3 + i, 5), params=params))
    while not engine._in_flight:
        engine.step()
    engine.reset_prefix_cache()
    for i in range(4):
        engine.abort(str(i))
    runner: Any = engine._runner
    assert runner._pending, "nobody waits for it"
    engine.submit(Request(id="4", token_ids=tuple(BASE), params=evolve(params, max_tokens=8)))
    outputs = [output for _ in range(400) if engine.busy for output in engine.step()]
    assert [output.token_id for output in outputs] == right[0]
    assert outputs[0].num_cached == 96
    engine.close()


def test_sleep_and_other_weights_close_and_open_all_stores(
    tmp_path: Path, right: list[list[int]]
) -> None:
    engine = load(dtype="float32", ranks=1, pp=2, kv_store=str(tmp_path))
    assert ask(engine, BASE) == (right[0], 0)
    engine.sleep()
    engine.wake_up()
    assert ask(engine, BASE) == (right[0], 96)
    engine.close()


def test_explain_finds_the_blocks_of_the_first_rank(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "kv_store": str(tmp_path)}
    answers([BASE], ranks=1, pp=2, **options)
    given: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 160}
    given |= {"device": "cpu", "threads": 1, "memory": "2GiB", "block_size": 16}
    with open_model("demo", Options(**given, **options, pp=2)) as opened:
        survey = layouts.survey(opened)
    assert survey is not None and [each.differences for each in survey.layouts] == [()]


@pytest.mark.slow
def test_processes_find_their_blocks_again(tmp_path: Path) -> None:
    """Processes, where the others are threads."""
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "memory": "2GiB"}
    plan = resolve("demo", Options(**options, pp=2, kv_store=str(tmp_path), cpu_mem_fold=1.0))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    async def asked() -> tuple[list[int | None], int]:
        client = EngineClient(plan)
        await client.start()
        stream = client.submit(Request(id="0", token_ids=tuple(BASE), params=params))
        outputs = [output async for batch in stream for output in batch]
        await client.close()
        return [output.token_id for output in outputs], outputs[0].num_cached

    tokens, cached = asyncio.run(asked())
    assert not cached
    assert asyncio.run(asked()) == (tokens, 96)
