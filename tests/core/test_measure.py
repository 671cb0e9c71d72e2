"""A cache sized by what loading measured: on a fake device whose free memory shrinks, with the
model on the CPU."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from tests.fake_engine import FakeClient, FakeEngine, echoes, front
from tests.toy_states import catalog_with_toy, write_toy
from torch import Tensor

from inferno.cli.render import explained, started
from inferno.contracts import Device
from inferno.core.engine import Engine
from inferno.core.kvcache import KVCache
from inferno.core.runner import LaunchedStep, ModelRunner
from inferno.core.types import Step
from inferno.errors import OutOfMemoryError, RequestError
from inferno.llm import AsyncLLM
from inferno.plan import (
    Measured,
    Opened,
    Options,
    Plan,
    open_model,
    plan_from_json,
    plan_to_json,
    resolve,
    trial_lengths,
    trial_plan,
    with_measured,
)
from inferno.process import protocol
from inferno.process.client import EngineClient
from inferno.process.worker import Worker
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.weights.measure import free_memory

MIB = 1 << 20
BUDGET, ROWS, CONTEXT, BLOCK = 40, 4, 128, 8
LAYERS = {
    "attention": ["attention", "attention"],
    "windows and states": ["window", "state", "attention"],
    "states": ["state"],
}


@pytest.fixture(scope="module", params=LAYERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_toy(tmp_path_factory.mktemp("toy"), LAYERS[request.param])


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_toy(tmp_path_factory.mktemp("toy"), LAYERS["attention"])


def opened_at(path: str, **changes: Any) -> Opened:
    given = {
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": BUDGET,
        "block_size": BLOCK,
        "memory": "2GiB",
    }
    return open_model(path, Options(**{**given, **changes}), catalog_with_toy())


def shrinking(plan: Plan, used: int, before: int | None = None) -> Callable[[], int]:
    """A device of which the model and a trial step take `used` bytes, besides the trial's cache."""
    before = plan.memory_limit if before is None else before
    return iter((before, before - used - trial_plan(plan).kv_bytes)).__next__


def load(path: str, used: int, before: int | None = None, **changes: Any) -> Engine:
    with opened_at(path, **changes) as opened:
        return Engine.load(opened, shrinking(opened.plan, used, before))


def tokens(engine: Engine) -> dict[str, list[int | None]]:
    answers: dict[str, list[int | None]] = {}
    for i, length in enumerate((1, 30, 77, 8, 9, 40)):
        prompt = tuple((7 * i + 3 * j) % 64 for j in range(length))
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        engine.submit(Request(id=str(i), token_ids=prompt, params=params))
    while engine.busy:
        for output in engine.step():
            answers.setdefault(output.request_id, []).append(output.token_id)
        engine.check()
    return answers


# --- the cache that fits --------------------------------------------------------------------------


def test_the_cache_gets_what_the_model_leaves(attention: str) -> None:
    with opened_at(attention) as opened:
        plan = opened.plan
    unit = plan.groups[0].unit_bytes
    used = plan.memory_limit - 20 * unit - 5
    measured = load(attention, used).plan
    assert measured.num_blocks == 20 < plan.num_blocks
    assert measured.measured == Measured(free=plan.memory_limit, used=used)
    assert measured.memory[-1].nbytes == measured.kv_bytes == 20 * unit
    assert "20 blocks" in measured.memory[-1].why and measured.memory[:-1] == plan.memory[:-1]
    assert measured.max_model_len == CONTEXT
    less = load(attention, used, before=plan.memory_limit - 3 * unit).plan
    assert less.num_blocks == 17, "another program took memory since the plan was made"


def test_the_cache_grows_where_less_is_used_than_planned(attention: str) -> None:
    with opened_at(attention) as opened:
        plan = opened.plan
    tight = plan.fixed_bytes + 17 * plan.groups[0].unit_bytes
    grown = load(attention, plan.fixed_bytes - 3 * plan.groups[0].unit_bytes, memory=f"{tight}B")
    assert grown.plan.num_blocks == 20
    most = load(attention, 0).plan
    assert most.num_blocks == ROWS * CONTEXT // BLOCK, "more would never be used"


def test_a_measured_engine_answers_like_any_other(checkpoint: str) -> None:
    with opened_at(checkpoint) as opened:
        plain = Engine.load(opened)
    assert plain.plan is opened.plan and plain.plan.measured is None, "a CPU is not measured"
    fixed = plain.plan.fixed_bytes
    measured = load(checkpoint, fixed + MIB)
    assert measured.plan.measured is not None and tokens(measured) == tokens(plain)
    assert [g.kind for g in measured.plan.groups] == [g.kind for g in plain.plan.groups]


def test_the_scheduler_and_the_tensors_have_the_measured_blocks(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_at(attention) as opened:
        plan = opened.plan
    engine = load(attention, plan.memory_limit - 20 * plan.groups[0].unit_bytes)
    assert engine._scheduler._groups.num_blocks == 20
    assert isinstance(engine._runner, ModelRunner)
    counts = {len(t) for layer in engine._runner.cache.layers for t in layer.values()}
    assert counts == {20}


def test_a_context_that_no_longer_fits_is_an_error_that_says_what_does(attention: str) -> None:
    with opened_at(attention) as opened:
        plan = opened.plan
    used = plan.memory_limit - 10 * plan.groups[0].unit_bytes
    with pytest.raises(OutOfMemoryError, match="room for 80 tokens, and max_model_len is 128") as e:
        load(attention, used)
    assert "--max-model-len to 80" in e.value.remedy and "were planned" in e.value.cause
    with pytest.raises(OutOfMemoryError, match="room for 0 tokens") as e:
        load(attention, plan.memory_limit + MIB)
    assert e.value.remedy.startswith("Lower --max-num-batched-tokens"), "0 tokens are no advice"


def test_states_that_no_longer_fit_are_an_error(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = write_toy(tmp_path_factory.mktemp("toy"), LAYERS["states"])
    with opened_at(path) as opened:
        plan = opened.plan
    with pytest.raises(OutOfMemoryError, match="leaves 9 B for states of"):
        load(path, plan.memory_limit - 9)


# --- the trial step -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({}, [37, 1, 1, 1]),
        ({"max_model_len": 16}, [15, 15, 9, 1]),
        ({"max_model_len": 4}, [3, 3, 3, 3]),
        ({"max_num_batched_tokens": 4}, [1, 1, 1, 1]),
        ({"max_model_len": 1}, []),
    ],
)
def test_a_trial_has_the_most_tokens_and_the_most_sequences(
    attention: str, changes: dict[str, Any], lengths: list[int]
) -> None:
    with opened_at(attention) as opened:
        assert trial_lengths(attrs.evolve(opened.plan, **changes)) == lengths


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Every step that a runner computes."""
    launch, launches = ModelRunner.launch, list[Step]()

    def recorded(runner: ModelRunner, step: Step) -> LaunchedStep:
        launches.append(step)
        return launch(runner, step)

    monkeypatch.setattr(ModelRunner, "launch", recorded)
    return launches


def test_the_trial_is_one_such_step(checkpoint: str, steps: list[Step]) -> None:
    load(checkpoint, 0)
    [step] = steps
    assert [s.num_tokens for s in step.slices] == [37, 1, 1, 1]
    assert all(s.samples for s in step.slices)


def test_a_cache_smaller_than_the_largest_step_is_tried_as_it_is(
    attention: str, steps: list[Step]
) -> None:
    with opened_at(attention, max_model_len=32) as opened:
        plan = opened.plan
    limit = f"{plan.fixed_bytes + 4 * plan.groups[0].unit_bytes}B"
    engine = load(attention, plan.fixed_bytes, memory=limit, max_model_len=32)
    assert engine.plan.num_blocks == 4
    assert sum(s.num_tokens for s in steps[0].slices) < BUDGET, "no step can have more"


def test_the_trials_cache_is_gone_before_the_real_one_is_allocated(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, made = KVCache.of_plan, list[list[weakref.ref[Tensor]]]()

    def recorded(plan: Plan) -> KVCache:
        assert not any(ref() is not None for refs in made for ref in refs), "two caches at once"
        cache = allocate(plan)
        made.append([weakref.ref(t) for layer in cache.layers for t in layer.values()])
        return cache

    monkeypatch.setattr(KVCache, "of_plan", recorded)
    gc.disable()  # as in the engine process
    try:
        engine = load(checkpoint, 0)
    finally:
        gc.enable()
    assert len(made) == 2 and all(ref() is not None for ref in made[1])
    assert tokens(engine)


def test_a_gpu_without_memory_is_an_error_with_a_way_out(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(runner: ModelRunner, step: Step) -> LaunchedStep:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1")

    monkeypatch.setattr(ModelRunner, "launch", fails)
    with pytest.raises(OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 2.00 GiB\n"):
        load(attention, 0)


def test_only_cuda_devices_are_measured() -> None:
    plan = resolve("demo", Options(memory="2GiB", device="cpu"))
    on_gpu = attrs.evolve(plan, device=Device("cuda", 1))
    assert free_memory(on_gpu) is not None
    others = [attrs.evolve(plan, device=Device(kind)) for kind in ("cpu", "mps", "xpu")]
    ranks = resolve("demo", Options(memory="2GiB", device="cpu", tp=2)).ranks
    others.append(attrs.evolve(on_gpu, ranks=ranks))
    assert [free_memory(each) for each in others] == [None] * 4


# --- the plan comes back --------------------------------------------------------------------------


def measured_plan() -> Plan:
    plan = resolve("demo", Options(memory="2GiB", device="cpu"))
    return with_measured(plan, Measured(free=2 * plan.memory_limit, used=plan.fixed_bytes + MIB))


def test_a_measured_plan_survives_its_document() -> None:
    plan = measured_plan()
    assert plan.measured is not None
    assert plan_from_json(plan_to_json(plan)) == plan
    assert protocol.decode_plan(protocol.encode_plan(plan)) == plan


def test_explain_shows_what_was_planned_and_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = measured_plan()
    assert "measured" not in explained(attrs.evolve(plan, measured=None))
    shown = explained(plan)
    used, planned = "477.0 MiB", "476.0 MiB"
    assert f"{used}  all but the KV cache, after a trial step; {planned} were planned" in shown
    started(plan, {"load": 1.0})
    assert f"{used}: all but the KV cache, after a trial step" in capsys.readouterr().err


class Socket:
    """The engine process's end of a socket, to which nothing is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []

    def send_multipart(self, message: list[bytes]) -> None:
        self.sent.append((message[0], message[1]))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Plan, bytes, bytes]]:
    """The plan that a worker was given, and the message with which it was ready."""
    plan = resolve("demo", Options(memory="2GiB", device="cpu"))
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    free = shrinking(plan, plan.fixed_bytes + 300 * MIB, before=10 * plan.memory_limit)
    monkeypatch.setattr("inferno.weights.measure.free_memory", lambda device: free)
    socket = Socket()
    try:
        heart = SimpleNamespace(moved=lambda: None)
        Worker(socket, -1, heart).run(tmp_path / "plan.json")  # type: ignore[arg-type]
    finally:
        gc.unfreeze()
    [(kind, body)] = socket.sent
    yield plan, kind, body


def test_ready_carries_the_measured_plan_to_the_client(told: tuple[Plan, bytes, bytes]) -> None:
    given, kind, body = told

    async def receive() -> EngineClient:
        client = EngineClient(given)
        engine = client._engine
        engine._ready = asyncio.get_running_loop().create_future()
        engine._take(kind, body)
        await engine._ready
        await client.close()
        return client

    assert kind == protocol.READY
    plan = asyncio.run(receive()).plan
    assert plan.measured == Measured(
        free=10 * given.memory_limit, used=given.fixed_bytes + 300 * MIB
    )
    assert attrs.evolve(plan, measured=None, groups=given.groups, memory=given.memory) == given


def test_lengths_are_checked_against_the_plan_that_came_back() -> None:
    class Measuring(FakeClient):
        async def start(self) -> None:
            await super().start()
            self.plan.max_model_len = 50  # type: ignore[misc]  # the fake's plan is a namespace

    async def body() -> None:
        llm = AsyncLLM.of(Measuring(FakeEngine(echoes)), front(max_model_len=100))
        prompt = "a" * 60
        assert llm.preprocessor.encode_prompt(prompt)
        async with llm:
            assert llm.plan.max_model_len == llm.preprocessor.max_model_len == 50
            with pytest.raises(RequestError, match="the context holds 50"):
                llm.preprocessor.encode_prompt(prompt)

    asyncio.run(body())
