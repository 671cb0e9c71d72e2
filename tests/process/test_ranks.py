"""Ranks that compute each step together: what they are told, and how a group ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor

from inferno import LLM
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import Communicator, GrammarSpec, RankPlace
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.core.types import NewSequence, Sampled, Slice, Step, Verified
from inferno.errors import EngineDeadError, OptionError
from inferno.nn import Cut, Dense
from inferno.plan import Options, open_model, resolve, stages
from inferno.process.client import EngineClient
from inferno.process.prepare import prepared
from inferno.process.ranks import messages
from inferno.process.ranks.binding import bind
from inferno.process.ranks.group import Group
from inferno.process.ranks.leading import LeadingHome
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.thread_ranks import GREEDY, ThreadRanks, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels
from inferno.weights import packing
from inferno.weights.loading import load_model
from inferno.weights.quantizing import Progress, Quantizing

pytest.importorskip("inferno_demo")

PROMPTS = [[207, 932, 879], list(range(30, 70)), [5]]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture
def shared(catalog: Catalog) -> Iterator[Engine]:
    engine = load_shared("demo", catalog)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(catalog: Catalog) -> Engine:
    return load_shared("demo", catalog, 1)


# --- collectives ----------------------------------------------------------------------------------


def together(ranks: int, compute: Callable[[Communicator, int], Tensor]) -> list[Tensor]:
    """Compute on each rank, in a thread."""
    threads, results = ThreadRanks(ranks, load_catalog()), dict[int, Tensor]()

    def run(rank: int) -> None:
        place = RankPlace(rank=rank, ranks=ranks, folder="")
        results[rank] = compute(threads.communicator(place), rank)

    running = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return [results[rank] for rank in range(ranks)]


def test_sums_are_those_of_rank_order_in_float32_on_all_ranks() -> None:
    parts = [torch.randn(5, 33).bfloat16() for _ in range(4)]
    wanted = parts[0].float()
    for part in parts[1:]:
        wanted = wanted + part.float()
    for total in together(4, lambda shared, rank: shared.all_reduce(parts[rank].clone())):
        assert torch.equal(total, wanted.bfloat16())


def test_parts_of_unequal_widths_stand_side_by_side() -> None:
    parts = [torch.randn(3, width) for width in (4, 5, 1)]
    for whole in together(3, lambda shared, rank: shared.all_gather(parts[rank], (4, 5, 1))):
        assert torch.equal(whole, torch.cat(parts, -1))


# --- messages -------------------------------------------------------------------------------------


def test_followers_are_told_what_they_need_of_a_step() -> None:
    params = SamplingParams(stop=("secret",), prompt_logprobs=1, temperature=0)
    request = Request(id="name", token_ids=(1, 2, 3), params=params, cache_salt="secret")
    new = NewSequence(row=0, request=request, token_ids=(1, 2, 3))
    step = Step(slices=(Slice(0, 0, 3, True),), new_sequences=(new,))
    body = messages.encode_step(step, [[[7], [8, 9]]])
    assert b"secret" not in body and b"name" not in body
    told = messages.decode_step(body)
    assert told.drawn == [[[7], [8, 9]]] and told.step.slices == step.slices
    [known] = told.step.new_sequences
    assert known.token_ids == (1, 2, 3) and known.request.params.prompt_logprobs == 1
    assert known.request.token_ids == (1, 2, 3), "log-probabilities are of the prompt's own tokens"


def test_a_prompt_is_sent_once() -> None:
    prompt = tuple(range(60_000, 68_000))
    request = Request(id="1", token_ids=prompt, params=SamplingParams())
    new = NewSequence(row=0, request=request, token_ids=prompt)
    body = messages.encode_step(Step(slices=(), new_sequences=(new,)), [])
    assert 3 * len(prompt) <= len(body) < 4 * len(prompt)


def test_a_step_of_many_sequences_is_small() -> None:
    step = Step(slices=tuple(Slice(row, 1000 + row, 1, True) for row in range(256)))
    assert len(messages.encode_step(step, [[[50_000]] * 256])) < 5000


def test_what_a_step_drew_is_told_by_slice() -> None:
    plain = Sampled([5, 6, 7])
    assert messages.drawn_by(plain, [2, 0, 1]) == [[5], [6], [7]]
    verified = Sampled([5, 6, 7, 8], verified={0: Verified(3, 2), 1: Verified(2, 0)})
    assert messages.drawn_by(verified, [1, 0]) == [[5], [6, 7, 8]]


# --- answers --------------------------------------------------------------------------------------


def test_a_grammar_holds_ranks_too(shared: Engine, alone: Engine) -> None:
    pytest.importorskip("inferno_llguidance")
    grammar = GrammarSpec(kind="regex", text="[0-9]{4}-[0-9]{2}")
    params = SamplingParams(temperature=0, max_tokens=20, structured_outputs=grammar)
    ours, theirs = (answers(engine, PROMPTS, params) for engine in (shared, alone))
    assert tokens_of(ours) == tokens_of(theirs)


def test_requests_that_end_and_begin_in_any_order_have_the_tokens_of_one_process(
    shared: Engine, alone: Engine
) -> None:
    def run(engine: Engine) -> dict[str, list[int | None]]:
        tokens, waiting = dict[str, list[int | None]](), list(range(12))
        while engine.busy or waiting:
            for i in waiting[:2]:
                params = SamplingParams(temperature=0, max_tokens=3 + 5 * (i % 4), ignore_eos=True)
                prompt = tuple(PROMPTS[i % 3][: 1 + i])
                engine.submit(Request(id=str(i), token_ids=prompt, params=params))
            waiting = waiting[2:]
            if len(waiting) == 4:
                engine.abort("1")
            for output in engine.step():
                tokens.setdefault(output.request_id, []).append(output.token_id)
        return tokens

    assert run(shared) == run(alone)


def test_a_draft_model_proposes_on_the_first_rank_alone(catalog: Catalog, alone: Engine) -> None:
    shared = load_shared("demo", catalog, speculative="demo")
    ours, theirs = (answers(engine, PROMPTS, GREEDY) for engine in (shared, alone))
    stats = shared.stats()
    shared.close()
    assert tokens_of(ours) == tokens_of(theirs) and stats.accepted_tokens > 0


@pytest.mark.slow
def test_matrices_quantized_while_loading_are_those_of_one_process(
    catalog: Catalog, alone: Engine
) -> None:
    """A rank quantizes its part, whose blocks are those of the whole matrix."""
    quantized = [load_shared("demo", catalog, ranks, isq="int4_g32") for ranks in (1, 2)]
    ours, theirs = (tokens_of(answers(engine, PROMPTS, GREEDY)) for engine in quantized)
    for engine in quantized:
        engine.close()
    assert ours == theirs != tokens_of(answers(alone, PROMPTS, GREEDY))


def test_importance_is_cut_with_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict[int, Tensor]()
    scheme = SimpleNamespace(
        pack=lambda weight_OI, importance: seen.update({len(seen): importance}),
        weighted=True,
        layout="",
    )
    in_situ: Any = SimpleNamespace(scheme_of=lambda path: "toy", requantized=False)
    importance = {"layer": np.arange(8, dtype=np.float32)}
    schemes: Any = {"toy": scheme}
    quantizing = Quantizing(in_situ, schemes, importance, {}, Progress("toy", 100))
    weight = Dense(torch.randn(4, 8))
    for cut in (None, Cut(1, ((2, 6),)), Cut(0, ((1, 3),))):
        quantizing("layer", weight if cut is None else weight.cut(cut), cut)
    assert [len(each) for each in seen.values()] == [8, 4, 8]
    assert seen[1].tolist() == [2, 3, 4, 5]


def test_packed_weights_of_a_rank_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has started before: one process, two ranks, one process again."""
    pytest.importorskip("inferno_cpu._native", reason="needs native kernels")
    monkeypatch.setattr(stages, "KEPT_FROM", 0)
    monkeypatch.setattr(packing, "_DELAY", 0.0)
    monkeypatch.setattr("inferno.weights.packed.digest._SETTLED_NS", -(10**18))
    catalog = load_catalog()

    def start(ranks: int) -> tuple[bool, list[list[int | None]]]:
        options = Options(
            device="cpu", tp=ranks, max_model_len=256, packed_cache=str(tmp_path), threads=1
        )
        with open_model("demo", options) as opened, prepared(opened) as packed:
            threads = ThreadRanks(ranks, catalog)
            home_of = LeadingHome.starting(threads.start, threads.communicator)
            engine = Engine.load(opened, packed=packed, home_of=home_of if ranks > 1 else None)
        tokens = tokens_of(answers(engine, PROMPTS, GREEDY))
        for thread in threading.enumerate():
            if thread.name == "inferno packed weights":
                thread.join(60)
        engine.close()
        return packed is not None and packed.found, tokens

    runs = [start(ranks) for ranks in (1, 2, 1, 2)]
    assert [found for found, _ in runs] == [False, False, True, True]
    assert runs[0][1] == runs[2][1] and runs[1][1] == runs[3][1]
    assert len([*tmp_path.glob("*.packed")] or [*tmp_path.iterdir()]) >= 3, "one for each part"


def test_batch_invariant_ranks_give_the_same_bits_in_every_batch() -> None:
    """With native kernels, which promise it, and captured steps: sums have an order."""
    pytest.importorskip("inferno_cpu._native", reason="needs native kernels")
    options: dict[str, Any] = {"batch_invariant": True, "dtype": "bfloat16", "threads": 1}
    engine = load_shared("demo", load_catalog(), **options)
    params = SamplingParams(temperature=0.9, seed=1, max_tokens=16, ignore_eos=True, logprobs=1)

    def bits(prompts: list[list[int]]) -> list[list[Any]]:
        batch = answers(engine, prompts, params)
        return [[(each.token_id, each.logprobs) for each in outputs] for outputs in batch]

    assert bits(PROMPTS) == [bits([prompt])[0] for prompt in PROMPTS]
    engine.close()


# --- how a group ends -----------------------------------------------------------------------------


def failing(model: Any, calls: int, error: BaseException) -> None:
    """Let a layer's attention fail in a later step."""
    attention = model.model.layers[1].self_attn
    forward, left = attention.forward, [calls]

    def fails(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return forward(*given)

    attention.forward = fails


def model_of(engine: Engine) -> Any:
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    return runner._model


def begin(engine: Engine) -> None:
    for i, prompt in enumerate(PROMPTS):
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))


def until_it_fails(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def test_an_error_in_a_step_ends_the_group(shared: Engine) -> None:
    """Else every later sum would be of other layers."""
    failing(model_of(shared), 7, ValueError("a bug"))
    begin(shared)
    with pytest.raises(ValueError, match="a bug"):
        until_it_fails(shared)
    with pytest.raises(EngineDeadError, match="interrupted") as caught:
        shared.step()
    assert "load the model again" in caught.value.remedy


def test_a_step_that_was_never_drawn_ends_the_group(shared: Engine) -> None:
    """The other ranks do not know its tokens."""
    begin(shared)
    runner: Any = shared._runner
    scheduler = shared._scheduler
    runner.launch(scheduler.plan())
    with pytest.raises(EngineDeadError, match="interrupted"):
        runner.launch(scheduler.plan())


def test_an_interrupted_step_ends_the_group(shared: Engine) -> None:
    failing(model_of(shared), 3, KeyboardInterrupt())
    begin(shared)
    with pytest.raises(KeyboardInterrupt):
        until_it_fails(shared)
    with pytest.raises(EngineDeadError, match="interrupted"):
        shared.step()


def test_the_traceback_of_a_follower_reaches_the_user(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from inferno.process.ranks import following

    def load(opened: Any, *given: Any) -> Any:
        model = load_model(opened, *given)
        failing(model, 5, ValueError("a bug in a follower"))
        return model

    monkeypatch.setattr(following, "load_model", load)
    engine = load_shared("demo", catalog)
    begin(engine)
    with pytest.raises(EngineDeadError, match="rank 1.*a bug in a follower") as caught:
        until_it_fails(engine)
    assert "Traceback" in caught.value.detail and "in fails" in caught.value.detail
    assert "in fails" in caplog.text, "it is in the log too"
    engine.close()


def test_the_rank_that_failed_first_is_named_not_those_that_missed_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferno.process.ranks import following

    def load(opened: Any, *given: Any) -> Any:
        model = load_model(opened, *given)
        if opened.rank == 2:
            failing(model, 5, ValueError("a bug in the last rank"))
        return model

    monkeypatch.setattr(following, "load_model", load)
    engine = load_shared("demo", catalog, 4)
    begin(engine)
    with pytest.raises(EngineDeadError, match="rank 2: .*a bug in the last rank"):
        until_it_fails(engine)
    engine.close()


def test_a_rank_that_cannot_load_fails_the_start_with_its_reason(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferno.process.ranks import following

    def load(*_: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(following, "load_model", load)
    with pytest.raises(EngineDeadError, match="rank 1.*no room"):
        load_shared("demo", catalog)


def test_a_rank_that_cannot_be_started_is_named() -> None:
    plan = resolve("demo", Options(device="cpu", tp=2))

    def start(what: Any) -> Any:
        raise OSError("no more processes")

    group = Group(plan, start)
    with pytest.raises(
        EngineDeadError, match="rank 1 of 2 could not be started: no more processes"
    ):
        group.meet()


class Stopped:
    """A process that a signal has stopped."""

    def __init__(self) -> None:
        self.killed = threading.Event()

    def wait(self) -> str:
        self.killed.wait()
        return "was killed"

    def is_stopped(self) -> bool:
        return not self.killed.is_set()

    def kill(self) -> None:
        self.killed.set()


def test_a_rank_that_stays_stopped_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferno.process.ranks.group.STOPPED_SECONDS", 0.0)
    stopped = Stopped()
    group = Group(resolve("demo", Options(device="cpu", tp=2)), lambda what: stopped)
    with pytest.raises(
        EngineDeadError, match="rank 1 of 2 had been stopped by a signal, and was killed"
    ):
        group.meet()


def test_an_idle_engine_notices_the_end_of_a_rank(shared: Engine) -> None:
    answers(shared, PROMPTS, GREEDY)
    runner: Any = shared._runner
    runner._group._processes[1].kill()
    with pytest.raises(EngineDeadError, match="rank 1"):
        for _ in range(200):
            shared.rest()
            time.sleep(0.05)


def test_a_command_that_runs_one_process_refuses_a_plan_with_ranks() -> None:
    with (
        open_model("demo", Options(device="cpu", tp=2)) as opened,
        pytest.raises(OptionError, match="in one process"),
    ):
        load_model(opened)


def test_a_rank_runs_on_its_cores_until_it_is_closed() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    plan = resolve("demo", Options(device="cpu", tp=2))
    assert plan.ranks is not None
    bound = evolve(plan, ranks=evolve(plan.ranks, cores=((core,), (core,))))
    undo = bind(bound, 1)
    assert os.sched_getaffinity(0) == {core}
    undo()
    assert os.sched_getaffinity(0) == before
    bind(plan, 1)
    assert os.sched_getaffinity(0) == before


# --- processes ------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    """The ids of a process's children, zombies excepted."""
    ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            ids.append(int(stat.parent.name))
    return ids


def until(true: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "shape",
    [{"tp": 2}, *(pytest.param({**tp, "pp": 2}, marks=pytest.mark.slow) for tp in ({}, {"tp": 2}))],
)
def test_processes_give_the_tokens_of_one_with_captured_steps(shape: dict[str, Any]) -> None:
    """With native kernels where they are installed, on the data plane of several processes."""
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 256, "threads": 1}
    params = SamplingParams(temperature=0, max_tokens=16)
    texts = list[list[str]]()
    for ranks in ({}, shape):
        with LLM("demo", dtype="float32", **{**options, **ranks}) as llm:
            texts.append(
                [each.outputs[0].text for each in llm.generate(["One", "Two and"], params)]
            )
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"tp": 2}, {"pp": 2}])
def test_a_killed_rank_is_told_to_streams_and_the_next_answer_is_right(
    shape: dict[str, Any],
) -> None:
    plan = resolve("demo", Options(device="cpu", max_model_len=2048, threads=1, **shape))

    async def ask(client: EngineClient, name: str, count: int, after: Any = None) -> list[Any]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        ids: list[Any] = []
        async for tokens in client.submit(Request(id=name, token_ids=(207, 932), params=params)):
            ids += [token.token_id for token in tokens]
            if after is not None and len(ids) > 10:
                after()
                after = None
        return ids

    async def run() -> None:
        client = EngineClient(plan)
        await client.start()
        try:
            wanted = await ask(client, "a", 30)
            assert client.pid is not None
            [rank] = children_of(client.pid)
            killed = list[float]()

            def kill() -> None:
                os.kill(rank, signal.SIGKILL)
                killed.append(time.monotonic())

            with pytest.raises(EngineDeadError, match="rank 1 of 2 was killed by SIGKILL"):
                await ask(client, "b", 1500, kill)
            assert killed, "in the middle of an answer"
            await client.revive()
            assert await ask(client, "c", 30) == wanted and client.restarts == 1
        finally:
            await client.close()
        until(lambda: not children_of(rank))

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system ends orphans on Linux")
def test_ranks_end_with_their_engine() -> None:
    code = (
        "import time\nfrom inferno import LLM\n"
        "llm = LLM('demo', device='cpu', tp=3, max_model_len=256, threads=1)\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert engine.stdout is not None and engine.stdout.readline() == b"ready\n"
    ranks = children_of(engine.pid)
    assert len(ranks) == 2
    engine.kill()
    engine.wait()
    until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))
