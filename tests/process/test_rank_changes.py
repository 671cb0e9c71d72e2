"""Weights of several ranks: given back, restored and replaced as those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.peft_adapters import matrices, pairs, write_merged

from inferno import LLM, SamplingParams
from inferno.catalog import Catalog, load_catalog
from inferno.core.engine import Engine
from inferno.errors import AsleepError, CheckpointError, EngineDeadError
from inferno.plan import resolve
from inferno.process.ranks.following import FollowingResident
from inferno.request.requests import EngineOutput, Request
from inferno.testing.alike import alike
from inferno.testing.thread_ranks import GREEDY, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels

pytest.importorskip("inferno_demo")

PROMPTS = [[207, 932, 879], list(range(30, 70)), [5]]
CASES: dict[str, dict[str, Any]] = {
    "tensor parallel": {"ranks": 2},
    "pipeline": {"ranks": 1, "pp": 2},
    "both": {"ranks": 2, "pp": 2},
    "quantized in situ": {"ranks": 2, "isq": "q8_0"},
    "drafts": {"ranks": 2, "speculative": "ngram"},
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(resolve("demo").path)


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with other weights."""
    folder = tmp_path_factory.mktemp("other") / "model"
    return write_merged(model, folder, pairs(matrices(model), 1, 8))


@pytest.fixture
def shared(catalog: Catalog) -> Iterator[Engine]:
    engine = load_shared("demo", catalog)
    yield engine
    engine.close()


def tokens(engine: Engine) -> list[list[int | None]]:
    return tokens_of(answers(engine, PROMPTS, GREEDY))


def run(engine: Engine, steps: int = 1000) -> list[EngineOutput]:
    outputs = list[EngineOutput]()
    while engine.busy and steps:
        outputs += engine.step()
        engine.check()
        steps -= 1
    return outputs


@alike
@pytest.mark.parametrize("level", [2, 1])
@pytest.mark.parametrize("case", CASES)
def test_requests_of_ranks_go_on_after_a_sleep(catalog: Catalog, case: str, level: int) -> None:
    engine = load_shared("demo", catalog, **CASES[case])
    wanted = tokens(engine)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))
    outputs = run(engine, 3)
    engine.sleep(level)
    with pytest.raises(AsleepError):
        engine.submit(Request(id="late", token_ids=(5,), params=GREEDY))
    engine.wake_up(cache=False)
    assert engine.asleep
    engine.wake_up()
    outputs += run(engine)
    ids = [[o.token_id for o in outputs if o.request_id == str(i)] for i in range(len(PROMPTS))]
    assert ids == wanted == tokens(engine)
    engine.close()


@alike
@pytest.mark.parametrize("case", CASES)
def test_updated_ranks_answer_as_if_loaded_with_the_weights(
    catalog: Catalog, model: Path, other: Path, tmp_path: Path, case: str
) -> None:
    fresh = load_shared(str(other), catalog, **CASES[case])
    wanted = tokens(fresh)
    fresh.close()
    engine = load_shared("demo", catalog, **CASES[case])
    before = tokens(engine)
    assert before != wanted
    assert engine.update_weights(other, "other") == engine.weight_version == "other"
    assert tokens(engine) == wanted
    back = tmp_path / "back.safetensors"
    save_file(load_file(model / "model.safetensors"), back)
    engine.update_weights(back, temporary=True)
    assert tokens(engine) == before and not back.exists()
    engine.sleep(2)
    engine.update_weights(other)
    engine.wake_up()
    assert tokens(engine) == wanted
    engine.close()


@pytest.mark.slow
def test_what_does_not_fit_one_rank_changes_none(
    shared: Engine, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tokens(shared)
    wrong = tmp_path / "wrong.safetensors"
    save_file({"no.such.weight": load_file(other / "model.safetensors").popitem()[1]}, wrong)
    with pytest.raises(CheckpointError, match=r"rank 1: .*no\.such\.weight"):
        shared.update_weights(wrong, temporary=True)
    assert tokens(shared) == before and not wrong.exists()

    def fails(*_: Any, **__: Any) -> Any:
        raise CheckpointError("there is no such file on this machine", "Copy it there.")

    with monkeypatch.context() as patch:
        patch.setattr(FollowingResident, "checked", fails)
        with pytest.raises(CheckpointError, match="rank 1: there is no such file"):
            shared.update_weights(other)
    assert tokens(shared) == before and shared.weight_version == "0"
    shared.update_weights(other)
    assert tokens(shared) != before


@pytest.mark.parametrize("change", ["apply", "release", "restore"])
def test_an_error_of_a_rank_that_changes_ends_the_group(
    shared: Engine, other: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(FollowingResident, change, fails)
    with pytest.raises(EngineDeadError, match="rank 1.*no room"):
        if change == "apply":
            shared.update_weights(other)
        shared.sleep(2)
        shared.wake_up()


@pytest.mark.slow
def test_processes_take_tensors_that_are_given_in_python(other: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(other), device="cpu", dtype="float32", memory="1GiB") as llm:
        wanted = [each.outputs[0].token_ids for each in llm.generate(PROMPTS, params)]
    with LLM("demo", device="cpu", dtype="float32", memory="1GiB", tp=2) as llm:
        version = llm.update_weights(load_file(other / "model.safetensors").items(), version="x")
        assert version == "x"
        assert [each.outputs[0].token_ids for each in llm.generate(PROMPTS, params)] == wanted
        llm.sleep(1)
        llm.wake_up()
        assert [each.outputs[0].token_ids for each in llm.generate(PROMPTS, params)] == wanted
