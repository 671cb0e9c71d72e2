"""Adapters beside the layers of several pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.peft_adapters import matrices, pairs, write_peft
from torch import Tensor

from inferno.catalog import Catalog, load_catalog
from inferno.core.engine import Engine
from inferno.errors import CheckpointError, EngineDeadError
from inferno.plan import Options, open_model, resolve
from inferno.request.requests import AdapterRef, Request
from inferno.testing.adapters import MOST, MemoryAdapter, serving
from inferno.testing.thread_ranks import GREEDY, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels

pytest.importorskip("inferno_demo")

PROMPTS = [[207, 932, 879], list(range(30, 70)), [5], list(range(90, 200))]
ROOM: dict[str, Any] = {"max_loras": 2, "max_lora_rank": MOST}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return matrices(Path(resolve("demo").path))


def of_layers(weights: dict[str, Tensor], *layers: int) -> dict[str, Tensor]:
    """The matrices of some layers only, as PEFT's `layers_to_transform` chooses them."""
    return {p: w for p, w in weights.items() if any(f".layers.{n}." in p for n in layers)}


def submit(engine: Engine, refs: Sequence[AdapterRef | None]) -> None:
    for i, (prompt, ref) in enumerate(zip(PROMPTS, refs, strict=True)):
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY, adapter=ref))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_adapter_of_another_stages_layers_is_computed_there(
    catalog: Catalog, weights: dict[str, Tensor], ranks: int
) -> None:
    """One of the first layer and one of the last, neither of which the other stage has."""
    last = max(int(path.split(".")[2]) for path in weights)
    chosen = of_layers(weights, 0), of_layers(weights, last)
    given = [MemoryAdapter.random(i, each, 4) for i, each in enumerate(chosen, 1)]
    served, refs = serving(catalog, given), [None, *(each.ref for each in given)] * 2
    rows = list[list[list[int | None]]]()
    for count, stages in ((1, 1), (ranks, 2)):
        engine = load_shared("demo", served, count, pp=stages, **ROOM)
        rows += [tokens_of(answers(engine, [p] * 4, GREEDY, refs[:4])) for p in PROMPTS]
        engine.close()
    half = len(rows) // 2
    assert rows[:half] == rows[half:]
    assert any(answer[0] != answer[1] for answer in rows), "an adapter changes tokens"


def test_an_adapter_that_does_not_fit_another_stage_is_refused_and_the_group_goes_on(
    catalog: Catalog, weights: dict[str, Tensor]
) -> None:
    """By the engine's rank, which has none of these layers."""
    early = of_layers(weights, 0)
    path = next(iter(early))
    wrong = {path: early[path][1:]}
    foreign = {path.replace("layers.0.", "layers.77."): early[path]}
    given = [MemoryAdapter.random(i, each, 4) for i, each in enumerate((wrong, foreign, early), 1)]
    engine = load_shared("demo", serving(catalog, given), 1, pp=2, **ROOM)
    for each, why in zip(given, ("belongs to another model", "has no such matrix"), strict=False):
        with pytest.raises(CheckpointError) as caught:
            submit(engine, [each.ref] * 4)
        assert why in f"{caught.value.cause} {caught.value.remedy}"
    assert all(answers(engine, PROMPTS, GREEDY, [given[-1].ref] * 4))
    engine.close()


def test_an_adapter_that_was_removed_is_still_written_for_steps_in_flight(
    catalog: Catalog, weights: dict[str, Tensor]
) -> None:
    """Its request was aborted: nobody waits for the step, which is computed all the same."""
    given = [MemoryAdapter.random(i, weights, 4) for i in (1, 2, 3)]
    engine = load_shared("demo", serving(catalog, given), 1, pp=2, **ROOM)
    for i, each in enumerate(given):
        request = Request(id=f"{i}", token_ids=(7, 3 + i), params=GREEDY, adapter=each.ref)
        engine.submit(request)
        engine.step()
        if i < 2:
            engine.abort(f"{i}")
    while engine.busy:
        engine.step()
        engine.check()
    [tokens] = tokens_of(answers(engine, [[7, 5]], GREEDY, [given[2].ref]))
    engine.close()
    alone = load_shared("demo", serving(catalog, given), 1, **ROOM)
    assert [tokens] == tokens_of(answers(alone, [[7, 5]], GREEDY, [given[2].ref]))


def test_adapters_of_the_start_are_checked_against_all_stages(
    catalog: Catalog, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    early = of_layers(weights, 0)
    good = write_peft(tmp_path / "good", pairs(early, 1, 4))
    foreign = {path.replace("layers.0.", "layers.77."): w for path, w in early.items()}
    bad = write_peft(tmp_path / "bad", pairs(foreign, 1, 4))
    load_shared("demo", catalog, 1, pp=2, loras=(f"a={good}",)).close()
    with pytest.raises((CheckpointError, EngineDeadError), match="no such matrix"):
        load_shared("demo", catalog, 1, pp=2, loras=(f"a={bad}",))


@pytest.mark.parametrize("level", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_other_stages_have_is_known_after_a_sleep(
    catalog: Catalog, weights: dict[str, Tensor], level: int
) -> None:
    early = of_layers(weights, 0)
    given = [MemoryAdapter.random(i, early, 4) for i in (1, 2)]
    engine = load_shared("demo", serving(catalog, given), 1, pp=2, **ROOM)
    refs = [None, given[0].ref] * 2
    before = tokens_of(answers(engine, PROMPTS, GREEDY, refs))
    engine.sleep(level)
    engine.wake_up()
    assert tokens_of(answers(engine, PROMPTS, GREEDY, refs)) == before
    assert answers(engine, PROMPTS, GREEDY, [given[1].ref] * 4)
    engine.close()


def test_room_for_adapters_is_planned_for_a_stages_layers(catalog: Catalog) -> None:
    sizes = list[int]()
    for pp in (1, 2):
        options = Options(device="cpu", pp=pp, max_model_len=128, max_loras=4)
        with open_model("demo", options, catalog) as opened:
            [planned] = [item.nbytes for item in opened.plan.memory if item.name == "adapters"]
        sizes.append(planned)
    assert sizes[1] < 0.7 * sizes[0]
