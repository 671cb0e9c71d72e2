"""Pipeline stages: steps in flight, what is passed on, and how a group ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from tests.stores.test_stored_caches import toy_of
from torch import Tensor

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import GrammarSpec, RankPlace
from inferno.core.engine import Engine
from inferno.core.types import Step
from inferno.errors import EngineDeadError, PluginError
from inferno.plan import Options, open_model
from inferno.process.ranks.passing import GlooLink, Link, Neighbours, pipelined
from inferno.process.ranks.socket_link import SocketLink
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.thread_ranks import GREEDY, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels
from inferno.weights import packing
from inferno.weights.pipeline import of_rank

pytest.importorskip("inferno_demo")

PROMPTS = [[207, 932, 879], list(range(30, 70)), [5], list(range(90, 200))]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture
def staged(catalog: Catalog) -> Iterator[Engine]:
    engine = load_shared("demo", catalog, 1, pp=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(catalog: Catalog) -> Engine:
    return load_shared("demo", catalog, 1)


# --- steps in flight ------------------------------------------------------------------------------


def test_a_long_prompt_alone_has_windows_for_all_its_steps_in_flight(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Else it would give way to itself, again and again."""
    pytest.importorskip("inferno_qwen3")
    path = toy_of("qwen3:TestSlidingWindow", tmp_path)
    limits: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 48, "max_model_len": 160}
    prompts, runs = [[7 * i % 100 for i in range(150)]], []
    for stages in (1, 2):
        engine = load_shared(path, catalog, 1, pp=stages, dtype="float32", **limits)
        assert any(group.kind == "window" for group in engine.plan.groups)
        engine.submit(Request(id="0", token_ids=tuple(prompts[0]), params=GREEDY))
        outputs = [output for _ in range(100) if engine.busy for output in engine.step()]
        runs.append([output.token_id for output in outputs])
        assert not engine.stats().preemptions
        engine.close()
    assert runs[0] == runs[1] and len(runs[0]) > 1


def launched_by(engine: Engine) -> list[Step]:
    """The steps that an engine launches from now on."""
    launches, launch = list[Step](), engine._runner.launch

    def noted(step: Step, *more: Any) -> Any:
        launches.append(step)
        return launch(step, *more)

    engine._runner.launch = noted  # type: ignore[method-assign, assignment]
    return launches


@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_there_is_a_step_in_flight_for_each_stage_with_its_part_of_the_requests(
    catalog: Catalog, stages: int
) -> None:
    engine = load_shared("demo", catalog, 1, pp=stages)
    steps = launched_by(engine)
    for i in range(8):
        request = Request(id=str(i), token_ids=(7, 3 + i), params=GREEDY)
        engine.submit(request)
    depths = list[int]()
    while engine.busy:
        engine.step()
        depths.append(len(engine._in_flight))
        engine.check()
    engine.close()
    assert max(depths) == stages - 1, "and one more while a step is launched"
    decoding = [{s.row for s in step.slices} for step in steps if not step.new_sequences]
    middle = decoding[stages : -2 * stages]
    assert {len(rows) for rows in middle} == {8 // stages}
    for i, rows in enumerate(middle[: -stages + 1]):
        together = set[int]().union(*middle[i : i + stages])
        assert len(together) == 8, "none is in two steps in flight"
        assert rows


@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_requests_that_end_and_begin_in_any_order_have_the_tokens_of_one_process(
    catalog: Catalog, alone: Engine, stages: int
) -> None:
    """Some in parts, some with several answers, one aborted, and what is cached forgotten once."""

    def run(engine: Engine) -> dict[str, list[int | None]]:
        drawn, waiting, steps = dict[str, list[int | None]](), list(range(12)), 0
        while engine.busy or waiting:
            for i in waiting[:2]:
                params = SamplingParams(temperature=0, max_tokens=3 + 5 * (i % 4), ignore_eos=True)
                prompt = tuple(PROMPTS[i % 4][: 1 + 9 * i])
                for name in (f"{i}", f"{i} again"):
                    engine.submit(Request(id=name, token_ids=prompt, params=params))
            waiting = waiting[2:]
            if len(waiting) == 4:
                engine.abort("1")
            if (steps := steps + 1) == 9:
                engine.reset_prefix_cache()
            for output in engine.step():
                drawn.setdefault(output.request_id, []).append(output.token_id)
            engine.check()
        drawn.pop("1", None)  # it ended wherever it was
        return drawn

    options: dict[str, Any] = {"max_num_batched_tokens": 64, "max_num_seqs": 6}
    engine = load_shared("demo", catalog, 1, pp=stages, **options)
    tokens = run(engine)
    engine.close()
    assert tokens == run(alone) and len(tokens) == 23


def test_a_grammar_holds_stages_too_and_does_not_empty_them(staged: Engine, alone: Engine) -> None:
    pytest.importorskip("inferno_llguidance")
    grammar = GrammarSpec(kind="regex", text="[0-9]{4}-[0-9]{2}")
    params = SamplingParams(temperature=0, max_tokens=20, structured_outputs=grammar)
    deepest = 0
    for i, prompt in enumerate(PROMPTS):
        staged.submit(Request(id=str(i), token_ids=tuple(prompt), params=params))
    tokens: list[list[int | None]] = [[] for _ in PROMPTS]
    while staged.busy:
        for output in staged.step():
            tokens[int(output.request_id)].append(output.token_id)
        deepest = max(deepest, len(staged._in_flight))
    assert tokens == tokens_of(answers(alone, PROMPTS, params))
    assert deepest == 1, "and one more while a step is launched"


def test_a_prompt_becomes_the_embedding_of_one_process(staged: Engine, alone: Engine) -> None:
    """The last stage has the hidden states; the first one is told nothing of it."""
    prompt = tuple(PROMPTS[1])
    vectors = []
    for engine in (staged, alone):
        engine.submit(Request(id="e", token_ids=prompt, params=SamplingParams(), pooling="last"))
        while engine.busy:
            vectors += [output.embedding for output in engine.step() if output.embedding]
    assert len(vectors) == 2
    torch.testing.assert_close(torch.tensor(vectors[0]), torch.tensor(vectors[1]))


# --- what is passed on ----------------------------------------------------------------------------


@pytest.fixture(params=[GlooLink, SocketLink])
def linked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Link]]:
    """Links of two ranks in this process, of each kind."""
    places = [
        RankPlace(rank=i, ranks=2, folder=str(tmp_path), seconds=30.0, stages=2) for i in range(2)
    ]
    links: list[Link] = [request.param(place) for place in places]
    together([link.connect for link in links])
    yield links
    for link in links:
        link.close()


def together(calls: list[Callable[[], object]]) -> None:
    failures = list[BaseException]()

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures


def test_what_is_sent_arrives_in_order_in_every_type_and_may_change_meanwhile(
    linked: list[Link],
) -> None:
    one, other = linked
    given = [torch.full((3, 5), float(i), dtype=dtype) for i, dtype in enumerate(TYPES)]
    for x in given:
        one.send(x, 1)
        x.fill_(-1)
    tensors = [torch.empty_like(x) for x in given]
    for x in tensors:
        other.receive(x, 0)
    assert [float(x.float().unique()) for x in tensors] == [0, 1, 2]


def test_what_was_sent_before_a_rank_left_is_received(linked: list[Link]) -> None:
    """More than the system keeps for one connection."""
    one, other = linked
    x, into = torch.arange(1 << 20), torch.empty(1 << 20, dtype=torch.int64)
    reading = threading.Thread(target=other.receive, args=(into, 0))
    reading.start()
    one.send(x, 1)
    one.flush()
    one.close()
    reading.join(60)
    assert into.equal(x)


TYPES = (torch.float32, torch.bfloat16, torch.float16)


def test_whoever_waits_for_a_rank_goes_on_when_it_leaves_itself(linked: list[Link]) -> None:
    one, _ = linked
    threading.Timer(0.5, one.close).start()
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="has left"):
        one.receive(torch.empty(4), 1)
    assert time.monotonic() - began < 20, "gloo would wait for 30 s"


def test_whoever_waits_for_a_rank_that_leaves_is_told(linked: list[Link]) -> None:
    one, other = linked
    threading.Timer(0.2, other.close).start()
    with pytest.raises(ConnectionError, match="another rank has left"):
        one.receive(torch.empty(4), 1)


@pytest.mark.parametrize("kind", [GlooLink, SocketLink])
def test_ranks_of_one_stage_sum_through_the_link_where_nothing_else_does(
    tmp_path: Path, kind: Callable[..., Link]
) -> None:
    """Two stages of two ranks: each stage sums its own."""
    from inferno.process.ranks.exchange import Gloo

    places = [RankPlace(rank=i, ranks=4, folder=str(tmp_path), stages=2) for i in range(4)]
    ranks = [pipelined(Gloo, place, link_of=kind) for place in places]
    results = dict[int, tuple[Tensor, Tensor]]()

    def run(rank: int) -> None:
        communicator = ranks[rank]
        communicator.connect()
        total = communicator.all_reduce(torch.full((2, 3), float(rank + 1)))
        results[rank] = total, communicator.all_gather(torch.full((1, 2), float(rank)), [2, 2])

    together([partial(run, rank) for rank in range(4)])
    sums = [float(results[rank][0].unique()) for rank in range(4)]
    assert sums == [3, 3, 7, 7]
    assert results[0][1].tolist() == results[1][1].tolist() == [[0, 0, 1, 1]]
    assert results[2][1].tolist() == results[3][1].tolist() == [[2, 2, 3, 3]]
    for communicator in ranks:
        communicator.close()


def test_packed_weights_of_a_stage_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file for each: another number of stages finds none of them."""
    monkeypatch.setattr("inferno.plan.stages.KEPT_FROM", 0)
    options = Options(device="cpu", pp=2, max_model_len=256, packed_cache=str(tmp_path), threads=1)
    keys = list[str]()
    with open_model("demo", options) as opened:
        if opened.plan.packed_cache is None:
            pytest.skip("no installed kernel provider packs weights")
        for rank in range(2):
            packed = packing.PackedWeights.of(evolve(opened, rank=rank))
            assert packed is not None
            keys.append(str(packed._key))
    assert len(set(keys)) == 2


def test_a_model_that_does_not_know_of_stages_is_refused(catalog: Catalog) -> None:
    with (
        open_model("demo", Options(device="cpu", pp=2), catalog) as opened,
        pytest.raises(PluginError, match="does not know of pipeline stages"),
    ):
        of_rank(torch.nn.Linear(1, 1), [], opened)


# --- how a group ends -----------------------------------------------------------------------------


def test_an_error_in_a_stage_ends_the_group_with_its_traceback(
    staged: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Neighbours, *given: Any) -> None:
        raise ValueError("stage one is ill")

    monkeypatch.setattr(Neighbours, "pass_on", broken)
    staged.submit(Request(id="0", token_ids=(1, 2), params=GREEDY))
    with pytest.raises(EngineDeadError, match="rank 1: .*stage one is ill"):
        while staged.busy:
            staged.step()
    assert "in broken" in caplog.text
    staged.submit(Request(id="1", token_ids=(1, 2), params=GREEDY))
    with pytest.raises(EngineDeadError):
        while staged.busy:
            staged.step()


def test_an_error_in_the_last_stage_ends_the_group(
    staged: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.submit(Request(id="0", token_ids=(1, 2), params=GREEDY))
    staged.step()
    monkeypatch.setattr(staged._runner, "logits_of", lambda hidden: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        while staged.busy:
            staged.step()
    with pytest.raises(EngineDeadError):
        staged.submit(Request(id="1", token_ids=(1, 2), params=GREEDY))
        while staged.busy:
            staged.step()
