"""Every kind of cache comes back from disk after a restart: the same tokens, as much cached."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen

from inferno import LLM
from inferno.core.engine import Engine
from inferno.errors import OptionError
from inferno.plan import Options, open_model
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores.storing import Storing
from inferno.testing import alike, transformers_model

FAMILIES = Path(__file__).parents[2] / "plugins" / "models"


@frozen(kw_only=True)
class Case:
    """A cache, and how many tokens of the four prompts come from disk."""

    model: str = "demo"
    """Or a class of a family's tests, whose config is a toy."""
    options: dict[str, Any]
    cached: tuple[int, ...] = (96, 64, 32, 96)


PLAIN = {"dtype": "float32"}
CASES = {
    "float32": Case(options=PLAIN),
    "bfloat16": Case(options={"dtype": "bfloat16"}),
    "int8": Case(options=PLAIN | {"kv_cache_dtype": "int8"}),
    "fp8": Case(options=PLAIN | {"kv_cache_dtype": "fp8"}),
    "latent": Case(model="deepseek:TestV3", options=PLAIN),
    "a window": Case(model="qwen3:TestSlidingWindow", options=PLAIN),
    "windows between": Case(model="gemma:TestGemma3", options=PLAIN),
    "windows with sinks": Case(model="gpt-oss:TestGptOss20B", options=PLAIN),
    # Snapshots are where prompts end and where two diverge, once both were seen.
    "states": Case(model="qwen3-next:TestQwen3Next", options=PLAIN, cached=(96, 64, 0, 96)),
}


def toy_of(model: str, folder: Path) -> str:
    """Write a family's toy with random weights."""
    if ":" not in model:
        return model
    config = config_of(model)
    torch.manual_seed(0)
    reference: Any = transformers_model(config)
    reference.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return str(folder)


def config_of(model: str) -> dict[str, Any]:
    """Return the config of a class of a family's tests."""
    family, name = model.split(":")
    path = FAMILIES / f"inferno-{family}" / "tests" / f"test_{family.replace('-', '_')}.py"
    spec = importlib.util.spec_from_file_location(f"toys_of_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    config: dict[str, Any] = vars(module)[name].config
    return config


def load(ref: str, **options: Any) -> Engine:
    given: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 160}
    given |= {"device": "cpu", "threads": 1, "memory": "2GiB", "block_size": 16}
    with open_model(ref, Options(**(given | options))) as opened:
        engine = Engine.load(opened)
    if isinstance(engine._store, Storing):
        engine._store.sizes = ()  # it loads what it can, however busy the machine is
    return engine


def ask(engine: Engine, prompt: Sequence[int]) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of the prompt's were cached."""
    engine.submit(
        Request(
            id="0",
            token_ids=tuple(prompt),
            params=SamplingParams(temperature=0, max_tokens=8),
        )
    )
    outputs = []
    while engine.busy:
        outputs += engine.step()
        engine.check()
    return [o.token_id for o in outputs if o.token_id is not None], outputs[0].num_cached


def answers(
    ref: str, prompts: Sequence[Sequence[int]], **options: Any
) -> list[tuple[list[int], int]]:
    engine = load(ref, **options)
    results = [ask(engine, prompt) for prompt in prompts]
    engine.close()
    return results


@alike
@pytest.mark.parametrize("name", CASES)
def test_a_cache_comes_back_after_a_restart(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    draw = random.Random(1)
    base = [draw.randrange(100) for _ in range(100)]
    other = base[:70] + [draw.randrange(100) for _ in range(40)]
    prompts = [base, other, base[:35], [*base, 3, 5, 7, 9]]
    right = [tokens for tokens, _ in answers(ref, prompts, **case.options, cache_policy="none")]
    stored = case.options | {"kv_store": str(tmp_path / "kv")}
    diverging = base[:70] + [draw.randrange(100) for _ in range(30)]
    [(tokens, cached), _] = answers(ref, [base, diverging], **stored)
    assert tokens == right[0] and not cached

    results = [answers(ref, [prompt], **stored)[0] for prompt in prompts]
    assert [tokens for tokens, _ in results] == right
    assert tuple(cached for _, cached in results) == case.cached

    files = sorted((tmp_path / "kv").glob("*/*/*"))
    assert files, "no blocks were written"
    for path in files:
        data = bytearray(path.read_bytes())
        for at in draw.sample(range(len(data)), 3):
            data[at] ^= 0x55
        path.write_bytes(data[:-1])
    results = answers(ref, prompts, **stored)
    assert [tokens for tokens, _ in results] == right, "a damaged block was used"


def test_an_engine_that_runs_another_layout_shares_nothing(tmp_path: Path) -> None:
    prompt, folder = list(range(90)), str(tmp_path)
    assert [cached for _, cached in answers("demo", [prompt], kv_store=folder)] == [0]
    float32 = answers("demo", [prompt], kv_store=folder, kv_cache_dtype="int8")
    assert [cached for _, cached in float32] == [0]
    assert [cached for _, cached in answers("demo", [prompt], kv_store=folder)] == [80]


def test_a_folder_with_another_layouts_blocks_is_refused(tmp_path: Path) -> None:
    answers("demo", [list(range(90))], kv_store=str(tmp_path))
    [folder] = tmp_path.glob("blocks-*")
    layout = json.loads((folder / "layout.json").read_text())
    (folder / "layout.json").write_text(json.dumps({**layout, "dtype": "float64"}))
    with pytest.raises(OptionError, match="dtype float64; this engine's is dtype bfloat16"):
        load("demo", kv_store=str(tmp_path))


def test_two_engines_cannot_use_one_folder_at_once(tmp_path: Path) -> None:
    engine = load("demo", kv_store=str(tmp_path))
    with pytest.raises(OptionError, match="in use by another process"):
        load("demo", kv_store=str(tmp_path))
    engine.close()


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_an_engine_that_stops_after_a_token_saves_all_full_blocks(
    max_tokens: int, tmp_path: Path
) -> None:
    engine = load("demo", kv_store=str(tmp_path))
    begin(engine, max_tokens)
    engine.close()
    assert [cached for _, cached in answers("demo", [[*LONG, 0]], kv_store=str(tmp_path))] == [96]


def test_an_engine_that_sleeps_after_a_token_finds_all_full_blocks(tmp_path: Path) -> None:
    engine = load("demo", kv_store=str(tmp_path))
    begin(engine)
    engine.sleep()
    engine.wake_up()
    assert ask(engine, [*LONG, 0])[1] == 96
    engine.close()


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_store_that_saves_no_last_blocks_ends_all_the_same(
    is_ended: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its blocks are computed again in the next life."""
    engine = load("demo", kv_store=str(tmp_path))
    begin(engine, 1 if is_ended else 8)

    def fail(*args: Any) -> None:
        raise RuntimeError("no more host memory")

    assert engine._store.mover is not None
    monkeypatch.setattr(type(engine._store.mover), "save", fail)
    engine.close()
    assert "not saved, and will be computed: no more host memory" in caplog.text
    monkeypatch.undo()
    assert answers("demo", [[*LONG, 0]], kv_store=str(tmp_path))[0][1] < 96


def test_nothing_is_left_to_save_once_an_llm_has_answered(tmp_path: Path) -> None:
    """A program may end without closing it."""
    with LLM("demo", device="cpu", threads=1, memory="2GiB", kv_store=str(tmp_path)) as llm:
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        for text in ("a", "b"):
            prompt = text * 100
            if text == "a":
                llm.generate(prompt, params)
            else:
                assert list(llm.stream(prompt, params))
            assert not llm._engine.busy, "the last block waits for a step"


LONG = [7 * i % 100 for i in range(96)]
"""Six blocks, of which a step is to save the last one after the prompt's."""


def begin(engine: Engine, max_tokens: int = 1) -> None:
    """Draw the first of a prompt's tokens."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engine.submit(Request(id="0", token_ids=tuple(LONG), params=params))
    while not engine.step():
        pass


def test_blocks_that_left_memory_come_back_from_the_host() -> None:
    draw = random.Random(2)
    prompts = [[draw.randrange(100) for _ in range(100)] for _ in range(3)]
    engine = load("demo", cpu_mem_fold=1)
    right = [ask(engine, prompt)[0] for prompt in prompts]
    engine._scheduler._groups.reset()
    assert [ask(engine, prompt) for prompt in prompts] == [(tokens, 96) for tokens in right]
    stats = engine.stats()
    assert 0 < stats.store_loaded_bytes <= stats.store_saved_bytes == stats.store_host_bytes
    assert not stats.store_folder_bytes and not stats.store_lost_parts
    engine.close()


def test_outputs_say_which_tier_cached_tokens_came_from(tmp_path: Path) -> None:
    options: dict[str, Any] = {"kv_store": str(tmp_path), "cpu_mem_fold": 1.0}
    engine = load("demo", **options)
    assert [tiers_of(engine) for _ in range(2)] == [(0, 0, 0), (80, 0, 0)]
    engine._scheduler._groups.reset()
    assert [tiers_of(engine) for _ in range(2)] == [(80, 80, 0), (80, 0, 0)]
    engine.close()
    engine = load("demo", **options)
    assert [tiers_of(engine) for _ in range(2)] == [(80, 0, 80), (80, 0, 0)]
    engine.close()


def tiers_of(engine: Engine) -> tuple[int, int, int]:
    """How many tokens of a prompt were cached, and came from host memory and from disk."""
    params = SamplingParams(max_tokens=1)
    engine.submit(Request(id="0", token_ids=tuple(range(90)), params=params))
    [output] = [output for _ in iter(lambda: engine.busy, False) for output in engine.step()]
    return output.num_cached, output.num_host, output.num_disk


def test_salted_prompts_are_not_shared(tmp_path: Path) -> None:
    engine = load("demo", kv_store=str(tmp_path))
    for salt, cached in (("a", 0), ("b", 0), ("a", 80)):
        request = Request(
            id="0",
            token_ids=tuple(range(90)),
            params=SamplingParams(temperature=0, max_tokens=2),
            cache_salt=salt,
        )
        engine.submit(request)
        outputs = []
        while engine.busy:
            outputs += engine.step()
        assert outputs[0].num_cached == cached
        engine.close()
        engine = load("demo", kv_store=str(tmp_path))
    engine.close()
