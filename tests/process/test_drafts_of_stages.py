"""Drafts that are verified by several pipeline stages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_stored_caches import config_of

from inferno import host
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import GrammarSpec
from inferno.core.engine import Engine
from inferno.plan import Options, open_model, plan_of_stage, resolve
from inferno.plan.draft_cost import Acceptance
from inferno.process.client import EngineClient
from inferno.process.ranks.leading import LastStage
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.mtp_reference import MTPReference
from inferno.testing.mtp_runs import write
from inferno.testing.thread_ranks import GREEDY, SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import small_options, without_kernels

pytest.importorskip("inferno_demo")

PROMPTS = [[207, 932, 879] * 4, list(range(30, 70)), [5], [9, 8, 7] * 40]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture(scope="module")
def alone(catalog: Catalog) -> Engine:
    return load_shared("demo", catalog, 1)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are proposed in every step, however few are accepted."""
    monkeypatch.setattr(Acceptance, "count", lambda self, cost, num_running: cost.most)


@pytest.mark.parametrize(
    ("ranks", "stages"),
    [(1, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 4), (2, 2)))],
)
@pytest.mark.parametrize("proposer", ["ngram", pytest.param("demo", marks=pytest.mark.slow)])
def test_drafts_of_the_last_stage_change_nothing(
    catalog: Catalog, alone: Engine, always: None, proposer: str, ranks: int, stages: int
) -> None:
    """Of n-grams, and of a draft model that is the model: it is right where the last stage knows
    what was drawn before."""
    options: dict[str, Any] = {"max_num_batched_tokens": 40, "max_num_seqs": 3}
    engine = load_shared("demo", catalog, ranks, pp=stages, speculative=proposer, **options)
    for params in (GREEDY, SEEDED, GREEDY):
        assert tokens_of(answers(engine, PROMPTS, params)) == tokens_of(
            answers(alone, PROMPTS, params)
        )
    stats = engine.stats()
    engine.close()
    assert 0 < stats.accepted_tokens <= stats.draft_tokens
    if proposer == "demo":
        assert stats.accepted_tokens > 0.8 * stats.draft_tokens


def test_steps_with_drafts_are_in_flight_in_every_stage(catalog: Catalog, always: None) -> None:
    engine = load_shared("demo", catalog, 1, pp=2, speculative="demo")
    assert isinstance(engine._runner, LastStage)
    runner: Any = engine._runner
    launch, drafted = runner.launch, list[int]()

    def noted(step: Any, *more: Any) -> Any:
        result = launch(step, *more)
        drafted.append(sum(bool(each.drafts) for each in runner._pending))
        return result

    runner.launch = noted
    answers(engine, PROMPTS * 2, GREEDY)
    engine.close()
    assert max(drafted) == 2


@pytest.mark.slow
def test_rows_that_change_owners_with_steps_in_flight_keep_their_tokens(
    catalog: Catalog, alone: Engine, always: None
) -> None:
    """Requests end, are aborted and begin, and what they have drawn is not taken for another's."""

    def run(engine: Engine) -> dict[str, list[int | None]]:
        drawn, waiting, steps = dict[str, list[int | None]](), list(range(24)), 0
        while engine.busy or waiting:
            for i in waiting[:1]:
                params = SamplingParams(temperature=0, max_tokens=2 + 5 * (i % 4), ignore_eos=True)
                prompt = tuple(PROMPTS[i % 4][: 1 + 5 * i])
                engine.submit(Request(id=f"{i}", token_ids=prompt, params=params))
            waiting, steps = waiting[1:], steps + 1
            if steps % 5 == 0:
                engine.abort(f"{steps}")
            for output in engine.step():
                drawn.setdefault(output.request_id, []).append(output.token_id)
            engine.check()
        return {i: ids for i, ids in drawn.items() if int(i) % 5 or not int(i)}

    options: dict[str, Any] = {"max_num_batched_tokens": 40, "max_num_seqs": 3}
    engine = load_shared("demo", catalog, 1, pp=3, speculative="demo", **options)
    tokens, stats = run(engine), engine.stats()
    engine.close()
    assert tokens == run(alone) and len(tokens) == 20
    assert stats.accepted_tokens > 0


def test_a_grammar_cuts_the_drafts_of_stages(catalog: Catalog, alone: Engine, always: None) -> None:
    pytest.importorskip("inferno_llguidance")
    grammar = GrammarSpec(kind="regex", text="[0-9]{4}-[0-9]{2}")
    params = SamplingParams(temperature=0, max_tokens=20, structured_outputs=grammar)
    engine = load_shared("demo", catalog, 1, pp=2, speculative="ngram")
    tokens = tokens_of(answers(engine, PROMPTS, params))
    engine.close()
    assert tokens == tokens_of(answers(alone, PROMPTS, params))


def test_a_proposer_that_fails_is_done_without(
    catalog: Catalog, alone: Engine, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_shared("demo", catalog, 1, pp=2, speculative="ngram")
    runner: Any = engine._runner
    monkeypatch.setattr(runner.drafting.drafter, "propose", lambda *given: 1 / 0)
    assert tokens_of(answers(engine, PROMPTS, GREEDY)) == tokens_of(answers(alone, PROMPTS, GREEDY))
    engine.close()


def test_the_last_stage_has_the_draft_models_layers(catalog: Catalog) -> None:
    options = small_options({"device": "cpu", "pp": 2, "speculative": "demo"})
    with open_model("demo", options, catalog) as opened:
        first, last = (plan_of_stage(opened.plan, stage) for stage in (0, 1))
        layers = len(opened.config.cache_specs())
        sets = [{layer for use in plan.attention for layer in use.layers} for plan in (first, last)]
    assert sets[0] == {*range(min(sets[1]))}, "the first stage has layers of the model only"
    assert sets[1] == {*range(min(sets[1]), 2 * layers)}


def test_native_kernels_replay_steps_with_drafts_in_stages(always: None) -> None:
    catalog = load_catalog()
    runs = list[Any]()
    for stages, proposer in ((1, None), (2, "demo")):
        engine = load_shared("demo", catalog, 1, pp=stages, speculative=proposer)
        engine._runner.capture_ahead()  # type: ignore[attr-defined]
        runs.append([tokens_of(answers(engine, [p], GREEDY)) for p in PROMPTS])
        engine.close()
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_processes_of_the_last_stage_propose_together(
    tmp_path: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes in each of two stages, with layers of multi-token prediction."""
    pytest.importorskip("inferno_glm4_moe")
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    config = config_of("glm4-moe:TestMTP")
    (reference := tmp_path / "reference").mkdir()
    path = write(tmp_path / "toy", config, MTPReference.of(config).tensors(reference))
    shared: dict[str, Any] = {"tp": 2, "pp": 2, "speculative": "mtp"}
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    async def asked(**options: Any) -> tuple[list[list[int | None]], int]:
        given = {"device": "cpu", "dtype": "float32", "memory": "3GiB", "threads": 1, **options}
        client = EngineClient(resolve(str(path), Options(**given, max_model_len=160)))
        await client.start()

        async def answer(i: int) -> list[int | None]:
            prompt = tuple((7 * i + j * j) % 100 for j in range(20 + 9 * i))
            stream = client.submit(Request(id=str(i), token_ids=prompt, params=params))
            return [output.token_id async for batch in stream for output in batch]

        answers = await asyncio.gather(*map(answer, range(3)))
        async with asyncio.timeout(30):
            while client.stats.num_running:
                await asyncio.sleep(0.05)
        drafts = client.stats.draft_tokens
        await client.close()
        return [*answers], drafts

    right, none = asyncio.run(asked())
    tokens, drafts = asyncio.run(asked(**shared))
    assert tokens == right and drafts > 0 == none
