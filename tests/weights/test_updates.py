"""Weights are replaced while an engine runs: it computes what it would if it were loaded with them,
and nothing that the old ones computed is used again."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.peft_adapters import matrices, pairs, write_merged, write_peft
from tests.weights.test_sleep import DEMO, GREEDY, load, prompt_of, request, run
from torch import Tensor

from inferno import LLM, AsyncLLM, SamplingParams
from inferno.errors import CheckpointError, OutOfMemoryError, RequestError
from inferno.plan import resolve
from inferno.testing.alike import alike
from inferno.weights.updates import write_tensors

PROMPT = prompt_of(1)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"dtype": "bfloat16"},
    "quantized in situ": {"isq": "q8_0"},
    "drafts": {"speculative": "ngram"},
}


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(resolve("demo").path)


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with all matrices of its layers changed."""
    folder = tmp_path_factory.mktemp("models") / "other"
    return write_merged(model, folder, pairs(matrices(model), 1, 8))


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def changed(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: new[name] for name in old if not torch.equal(old[name], new[name])}


def ask(llm: LLM, prompt: list[int] = PROMPT, **options: Any) -> list[int]:
    [output] = llm.generate([prompt], GREEDY, **options)
    return list(output.outputs[0].token_ids)


def answer(ref: Path | str, **options: Any) -> list[int]:
    with LLM(str(ref), **{**DEMO, "dtype": "float32", **options}) as llm:
        return ask(llm)


@alike
@pytest.mark.parametrize("case", OPTIONS)
def test_an_updated_model_answers_as_one_loaded_with_the_weights(
    model: Path, other: Path, case: str, tmp_path: Path
) -> None:
    options = {"dtype": "float32", "packed_cache": str(tmp_path), **OPTIONS[case]}
    first, second = answer(model, **options), answer(other, **options)
    assert first != second
    old, new = stored(model), stored(other)
    with LLM("demo", **DEMO, **options) as llm:
        assert ask(llm) == first and llm.weight_version == "0"
        assert llm.update_weights(changed(old, new).items()) == "1"
        assert ask(llm) == second, "some tensors"
        assert llm.update_weights(old.items(), version="step 2") == "step 2"
        assert ask(llm) == first, "all tensors"
        assert llm.update_weights(other / "model.safetensors") == "3"
        assert ask(llm) == second, "a file"
        llm.update_weights(model.absolute())
        assert ask(llm) == first, "a folder"
    assert answer(model, **options) == first, "what is packed on disk is of the checkpoint"


def test_partial_updates_add_up(model: Path, other: Path) -> None:
    old, new = stored(model), stored(other)
    expected = answer(other)
    with LLM("demo", dtype="float32", **DEMO) as llm:
        for name, tensor in changed(old, new).items():
            if "layers.0" in name:
                llm.update_weights([(name, tensor)], version=name)
                assert llm.weight_version == name
        llm.sleep(2)
        llm.wake_up()
        rest = {n: t for n, t in changed(old, new).items() if "layers.0" not in n}
        llm.update_weights(rest.items())
        assert ask(llm) == expected


def test_answers_say_which_weights_computed_them(model: Path, other: Path) -> None:
    new = stored(other)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, n=2)
    with LLM("demo", dtype="float32", **DEMO) as llm:
        for version in ("0", "1"):
            [output] = llm.generate([PROMPT], params)
            assert output.weight_version == version
            assert output.weight_versions == (((0, version),), ((0, version),))
            llm.update_weights(new.items())


def test_a_request_that_is_kept_goes_on_with_the_new_weights(model: Path, other: Path) -> None:
    engine = load()
    engine.submit(request("a", GREEDY))
    before = run(engine, 5)
    engine.update_weights(other / "model.safetensors", "new")
    after = run(engine)
    versions = [output.weight_version for output in before + after]
    assert versions == ["0", *[""] * (len(before) - 1), "new", *[""] * (len(after) - 1)]
    whole = [*PROMPT, *(i for i in (output.token_id for output in before) if i is not None)]
    engine.close()
    with LLM(str(other), dtype="float32", **DEMO) as llm:
        params = SamplingParams(temperature=0, max_tokens=len(after), ignore_eos=True)
        [output] = llm.generate([whole], params)
        assert list(output.outputs[0].token_ids) == [output.token_id for output in after]


def test_a_model_that_sleeps_wakes_up_with_the_new_weights(model: Path, other: Path) -> None:
    expected = answer(other)
    for level in (1, 2):
        with LLM("demo", dtype="float32", **DEMO) as llm:
            llm.sleep(level)
            assert llm.update_weights(stored(other).items()) == "1" and llm.is_sleeping
            llm.wake_up()
            assert ask(llm) == expected


def test_adapters_stay_beside_the_new_weights(model: Path, other: Path, tmp_path: Path) -> None:
    pytest.importorskip("inferno_peft")
    factors = pairs(matrices(model), 2, 4)
    adapter = write_peft(tmp_path / "adapter", factors)
    options: dict[str, Any] = {"dtype": "float32", "max_loras": 1, **DEMO}
    with LLM(str(other), **options) as llm:
        llm.load_lora("a", str(adapter))
        expected = [ask(llm, lora="a"), ask(llm)]
    with LLM("demo", **options) as llm:
        llm.load_lora("a", str(adapter))
        assert ask(llm, lora="a") != expected[0]
        llm.update_weights(stored(other).items())
        assert [ask(llm, lora="a"), ask(llm)] == expected


@pytest.mark.slow
def test_blocks_of_the_old_weights_are_not_found_in_a_store(
    model: Path, other: Path, tmp_path: Path
) -> None:
    pytest.importorskip("inferno_offload")
    expected = answer(other)
    for folder in (tmp_path / "a", tmp_path / "b"):
        with LLM("demo", dtype="float32", kv_store=str(folder), **DEMO) as llm:
            ask(llm)
            llm.update_weights(stored(other).items())
            [output] = llm.generate([PROMPT], GREEDY)
            assert output.num_cached_tokens == 0
            assert list(output.outputs[0].token_ids) == expected
    with LLM("demo", dtype="float32", kv_store=str(folder), **DEMO) as llm:
        [output] = llm.generate([PROMPT], GREEDY)
        assert output.num_cached_tokens > 0 and list(output.outputs[0].token_ids) == answer(model)


def test_what_does_not_fit_changes_nothing(model: Path, tmp_path: Path) -> None:
    old = stored(model)
    name = next(name for name in old if name.endswith("v_proj.weight"))
    good, nan = old[name].float(), old[name].float().clone()
    nan[0, 0] = float("nan")
    large = good * 1e30
    cases: dict[str, tuple[dict[str, Tensor], str]] = {
        "a name": ({f"{name}s": good}, f"has no tensor {name}s"),
        "a shape": ({name: good[1:]}, "the checkpoint has"),
        "a type": ({name: good.to(torch.int32)}, "int32"),
        "double": ({name: good.double()}, "float64"),
        "no number": ({name: nan}, "not finite"),
        "too large": ({name: large}, "not finite in float16"),
        "one of two": ({name: -good, "x": good}, "has no tensor x"),
        "nothing": ({}, "has no tensors"),
    }
    files = set(Path(tempfile.gettempdir()).glob("inferno_weights_*"))
    with LLM("demo", dtype="float16", **DEMO) as llm:
        expected = ask(llm)
        [before] = llm.generate([PROMPT], GREEDY)
        for tensors, message in cases.values():
            with pytest.raises(CheckpointError, match=message) as caught:
                llm.update_weights(tensors.items())
            assert "\n" not in caught.value.cause and caught.value.remedy
        with pytest.raises(RequestError, match="given twice"):
            llm.update_weights([(name, good), (name, good)])
        with pytest.raises(RequestError, match="no pair"):
            llm.update_weights([(name, "x")])
        with pytest.raises(RequestError, match="the mode is"):
            llm.update_weights([(name, good)], mode="later")
        for path in (tmp_path, tmp_path / "none.safetensors", model / "config.json"):
            with pytest.raises(CheckpointError):
                llm.update_weights(path)
        save_file({name: good}, tmp_path / "cut.safetensors")
        cut = (tmp_path / "cut.safetensors").read_bytes()[:-8]
        (tmp_path / "cut.safetensors").write_bytes(cut)
        with pytest.raises(CheckpointError, match="truncated"):
            llm.update_weights(tmp_path / "cut.safetensors")
        [after] = llm.generate([PROMPT], GREEDY)
        assert list(after.outputs[0].token_ids) == expected and llm.weight_version == "0"
        assert after.num_cached_tokens == before.num_cached_tokens > 0
    assert set(Path(tempfile.gettempdir()).glob("inferno_weights_*")) == files


def open_files() -> Iterator[str]:
    """Names of files that this process has open."""
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that lists them
            yield os.readlink(each)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_temporary_files_have_no_names_and_go_once_nothing_needs_them(model: Path) -> None:
    """A process that is killed leaves none behind."""
    old = stored(model)
    names = [name for name in old if name.endswith("v_proj.weight")]
    folder = Path(tempfile.gettempdir())
    files = set(folder.glob("inferno_weights_*"))

    def made() -> int:
        assert set(folder.glob("inferno_weights_*")) == files
        return sum("inferno_weights_" in each for each in open_files())

    with LLM("demo", dtype="float32", **DEMO) as llm:
        llm.update_weights([(names[0], old[names[0]])])
        llm.update_weights([(names[1], old[names[1]])])
        assert made() == 2
        llm.update_weights([(name, old[name]) for name in names])
        assert made() == 1
        llm.sleep(2)
        llm.wake_up()  # from the file without a name
        assert made() == 1
    assert made() == 0


def test_what_killed_processes_have_left_is_deleted(tmp_path: Path) -> None:
    left, fresh = (tmp_path / f"inferno_weights_{name}.safetensors" for name in "ab")
    for file in (left, fresh):
        file.touch()
    os.utime(left, (0, 0))
    written = write_tensors([("a", torch.zeros(2))], tmp_path)
    assert set(tmp_path.iterdir()) == {fresh, written}


@pytest.mark.slow
def test_an_engine_process_leaves_no_temporary_files(model: Path) -> None:
    [(name, tensor), *_] = stored(model).items()
    folder = Path(tempfile.gettempdir())
    files = set(folder.glob("inferno_weights_*"))

    async def updated() -> str:
        async with AsyncLLM("demo", dtype="float32", **DEMO) as llm:
            await llm.update_weights([(name, tensor)])
            assert set(folder.glob("inferno_weights_*")) == files
            return llm.weight_version

    assert asyncio.run(updated()) == "1"


def test_weights_outlive_the_file_but_a_deep_sleep_needs_it(
    model: Path, other: Path, tmp_path: Path
) -> None:
    file = tmp_path / "step.safetensors"
    expected = answer(other)
    with LLM("demo", dtype="float32", **DEMO) as llm:
        save_file(stored(other), file)
        llm.update_weights(file)
        file.write_bytes(b"\0" * 100)  # as a trainer writes the next one
        assert ask(llm) == expected
        llm.sleep(1)
        llm.wake_up()
        assert ask(llm) == expected
        llm.sleep(2)
        with pytest.raises(CheckpointError, match="changed since"):
            llm.wake_up()
        assert llm.is_sleeping
        save_file(stored(other), file)
        llm.update_weights(file)
        llm.wake_up()
        assert ask(llm) == expected


def test_if_the_new_weights_do_not_load_the_old_ones_are_again(
    model: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk fails between the check and the load."""
    from inferno.weights import resident

    real, failing = resident.Loaded.of, [True]
    files = set(Path(tempfile.gettempdir()).glob("inferno_weights_*"))

    def load_once(*args: Any) -> Any:
        if failing:
            failing.pop()
            raise CheckpointError("the disk is gone", "Buy one.")
        return real(*args)

    with LLM("demo", dtype="float32", **DEMO) as llm:
        expected = ask(llm)
        monkeypatch.setattr(resident.Loaded, "of", load_once)
        with pytest.raises(CheckpointError, match="the disk is gone"):
            llm.update_weights(stored(other).items())
        assert ask(llm) == expected and llm.weight_version == "0"
        failing += [True, True]
        with pytest.raises(CheckpointError, match="nor the old ones again"):
            llm.update_weights(stored(other).items())
        assert llm.is_sleeping
        llm.wake_up()
        assert ask(llm) == expected
        assert set(Path(tempfile.gettempdir()).glob("inferno_weights_*")) == files


def test_a_lack_of_memory_for_what_runs_new_weights_is_told_as_one(model: Path) -> None:
    engine = load()

    def again() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    assert engine._home is not None
    home, right = engine._home, engine._home.again
    home.again = again
    with pytest.raises(OutOfMemoryError, match="memory to update its weights"):
        engine.update_weights(model)
    assert engine.asleep
    home.again = right
    engine.wake_up()
    engine.submit(request("a", GREEDY))
    assert run(engine) and engine.weight_version == "1"
    engine.close()
