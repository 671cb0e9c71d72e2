"""An engine gives its memory back and has it again: requests do not notice."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.peft_adapters import matrices, pairs, write_peft
from tests.tiny_served import write

from inferno import LLM, SamplingParams
from inferno.core.engine import Engine
from inferno.errors import AsleepError, InfernoError, RequestError
from inferno.plan import Options, open_model, resolve
from inferno.request.requests import EngineOutput, Request
from inferno.testing.alike import alike
from inferno.testing.tiny import run_python

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(temperature=1, seed=7, max_tokens=12, ignore_eos=True)
DEMO: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4, "device": "cpu", "threads": 1}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "quantized in situ": {"dtype": "float32", "isq": "q8_0"},
    "drafts": {"dtype": "float32", "speculative": "ngram"},
    "an int8 cache": {"dtype": "float32", "kv_cache_dtype": "int8"},
}


def prompt_of(seed: int, length: int = 40) -> list[int]:
    return [5 + (7 * i + 3 * seed * i * i) % 90 for i in range(length)]


def request(name: str, params: SamplingParams, **changes: Any) -> Request:
    return Request(id=name, token_ids=tuple(prompt_of(len(name))), params=params, **changes)


def load(ref: str = "demo", **options: Any) -> Engine:
    with open_model(ref, Options(**{**DEMO, "dtype": "float32", **options})) as opened:
        return Engine.load(opened)


def run(engine: Engine, steps: int | None = None) -> list[EngineOutput]:
    """The outputs of so many steps, or of all."""
    outputs = []
    while engine.busy and (steps is None or steps > 0):
        outputs += engine.step()
        engine.check()
        steps = None if steps is None else steps - 1
    return outputs


def sleeps(engine: Engine | LLM) -> bool:
    return engine.is_sleeping if isinstance(engine, LLM) else engine.asleep


def tokens(outputs: Sequence[EngineOutput]) -> dict[str, list[int | None]]:
    ids: dict[str, list[int | None]] = {}
    for output in outputs:
        ids.setdefault(output.request_id, []).append(output.token_id)
    return ids


@alike
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_requests_that_run_go_on_after_a_sleep(case: str, level: int) -> None:
    engine = load(**CASES[case])
    requests = [request("a", GREEDY), request("bb", DRAWN), request("ccc", GREEDY)]
    for each in requests:
        engine.submit(each)
    expected = tokens(run(engine))
    for each in requests[:2]:
        engine.submit(each)
    before = run(engine, 5)
    engine.submit(requests[2])
    engine.sleep(level)
    assert sleeps(engine) and not engine.busy
    with pytest.raises(AsleepError, match="asleep"):
        engine.submit(request("late", GREEDY))
    with pytest.raises(AsleepError):
        engine.step()
    engine.wake_up()
    engine.check()
    assert tokens([*before, *run(engine)]) == expected
    assert engine.stats().num_running == engine.stats().num_waiting == 0
    engine.close()


def test_a_cached_prefix_is_forgotten_and_steps_are_captured_again() -> None:
    engine = load()
    for _ in range(2):
        engine.submit(request("a", GREEDY))
        outputs = run(engine)
    assert outputs[0].num_cached
    engine.sleep()
    engine.wake_up()
    engine.submit(request("a", GREEDY))
    outputs = run(engine)
    assert not outputs[0].num_cached
    replays = engine._runner.replays  # type: ignore[attr-defined]
    assert replays is None or replays.shapes
    engine.close()


def test_a_cached_prefix_is_forgotten_while_requests_go_on() -> None:
    engine = load()
    engine.submit(request("a", GREEDY))
    expected = tokens(run(engine))
    for cached in (True, False):
        engine.submit(request("a", GREEDY))
        outputs = run(engine, 5)
        assert bool(outputs[0].num_cached) is cached
        engine.reset_prefix_cache()
        engine.check()
        assert tokens([*outputs, *run(engine)]) == expected
        engine.reset_prefix_cache()
    engine.close()


def test_sleeping_twice_deeper_and_waking_by_parts() -> None:
    engine = load()
    engine.submit(request("a", GREEDY))
    expected = tokens(run(engine))
    assert engine._home is not None
    resident = engine._home.resident
    states = []
    for act in (
        partial(engine.sleep, 1),
        partial(engine.sleep, 2),
        partial(engine.wake_up, cache=False),
    ):
        act()
        states.append((resident.loaded is not None, engine.asleep))
    assert states == [(True, True), (False, True), (True, True)]
    engine.wake_up()
    engine.wake_up()
    engine.submit(request("a", GREEDY))
    assert tokens(run(engine)) == expected
    with pytest.raises(RequestError, match="level of sleep is 3"):
        engine.sleep(3)
    assert not sleeps(engine)
    engine.close()


def test_an_engine_is_closed_in_its_sleep() -> None:
    engine = load()
    engine.submit(request("a", GREEDY))
    engine.sleep(2)
    engine.close()
    with pytest.raises(InfernoError):
        engine.wake_up()


def test_blocks_in_a_store_outlive_a_sleep(tmp_path: Path) -> None:
    pytest.importorskip("inferno_offload")
    engine = load(kv_store=str(tmp_path))
    engine.submit(request("a", GREEDY))
    expected = tokens(run(engine))
    engine.sleep(2)
    engine.wake_up()
    engine.submit(request("a", GREEDY))
    outputs = run(engine)
    assert tokens(outputs) == expected
    assert outputs[0].num_cached == outputs[0].num_host + outputs[0].num_disk > 0
    engine.close()


def test_adapters_that_were_loaded_outlive_a_sleep(tmp_path: Path) -> None:
    pytest.importorskip("inferno_peft")
    factors = pairs(matrices(Path(resolve("demo").path)), 1, 4)
    folder = write_peft(tmp_path / "adapter", factors)
    with LLM("demo", dtype="float32", max_loras=1, **DEMO) as llm:
        llm.load_lora("a", str(folder))
        expected = [llm.generate([prompt_of(1)], GREEDY, lora=lora) for lora in ("a", None)]
        for level in (1, 2):
            llm.sleep(level)
            with pytest.raises(AsleepError):
                llm.load_lora("b", str(folder))
            llm.wake_up()
            again = [llm.generate([prompt_of(1)], GREEDY, lora=lora) for lora in ("a", None)]
            assert [out[0].outputs[0].token_ids for out in again] == [
                out[0].outputs[0].token_ids for out in expected
            ]


def test_a_stream_is_kept_aborted_or_waited_for() -> None:
    with LLM("demo", dtype="float32", **DEMO) as llm:
        [whole] = llm.generate([prompt_of(1)], GREEDY)
        expected = list(whole.outputs[0].token_ids)
        stream = llm.stream(prompt_of(1), GREEDY)
        head = list(next(stream).token_ids)
        llm.sleep(mode="keep")
        assert sleeps(llm)
        llm.wake_up(["weights"])
        assert sleeps(llm)
        llm.wake_up(["weights", "kv_cache"])
        assert not sleeps(llm)
        assert head + [i for delta in stream for i in delta.token_ids] == expected

        stream = llm.stream(prompt_of(1), GREEDY)
        head = list(next(stream).token_ids)
        llm.sleep(mode="wait")
        assert head + [i for delta in stream for i in delta.token_ids] == expected
        llm.wake_up()

        stream = llm.stream(prompt_of(1), GREEDY)
        head = list(next(stream).token_ids)
        llm.sleep(mode="abort")
        *rest, last = stream
        assert last.finish_reason == "abort" and len(head) + len(rest) < len(expected)
        llm.wake_up()
        with pytest.raises(RequestError, match="the mode is 'now'"):
            llm.sleep(mode="now")
        with pytest.raises(RequestError, match="the tag 'all'"):
            llm.wake_up(["all"])
        assert not sleeps(llm)


def test_a_stream_of_the_thread_that_sent_it_to_sleep_is_an_error() -> None:
    with LLM("demo", dtype="float32", **DEMO) as llm:
        stream = llm.stream(prompt_of(1), GREEDY)
        next(stream)
        llm.sleep(mode="keep")
        with pytest.raises(AsleepError):
            next(stream)


CODE = """
import json, sys
from inferno import LLM, SamplingParams

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

llm = LLM(sys.argv[1], device="cpu", dtype="float32", max_model_len=1000, max_num_seqs=4,
          memory="900MiB", packed_cache="none", threads=1)
prompt = [3 + i % 200 for i in range(450)]
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
prompts = [[i, *prompt] for i in range(4)]
ask = lambda: [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
expected = ask()
weights, cached = llm._engine.plan.memory[0].nbytes, 1800 * llm._engine.plan.kv_bytes_per_token
awake, same, asleep = resident(), [], []
for level in (1, 2, 1, 2, 2):
    llm.sleep(level)
    asleep.append(resident())
    llm.wake_up()
    same.append(ask() == expected)
print(json.dumps([weights, cached, awake, asleep, same]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_sleep_gives_the_memory_back(tmp_path: Path) -> None:
    """Measured asleep: one that is awake has besides what malloc keeps of finished steps, which is
    up to half of these weights, and differs from one answer to the next."""
    sizes: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 3}
    write(tmp_path, **sizes, num_key_value_heads=4, head_dim=64)
    done = run_python(CODE, str(tmp_path))
    weights, cached, awake, asleep, same = json.loads(done.stdout.splitlines()[-1])
    assert weights > 80e6 and cached > 10e6 and all(same)
    little = 0.05 * weights
    light, deep, light_again, *deep_again = asleep
    assert awake - light > 0.8 * cached
    assert abs(light - deep - weights) < little, "level 1 keeps the weights on a CPU, 2 does not"
    assert abs(light_again - light) < little, "it grows from sleep to sleep"
    assert all(abs(each - deep) < little for each in deep_again), "it grows from sleep to sleep"
