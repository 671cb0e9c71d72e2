"""Steps in flight on a real, tiny model: launch, draw and commit at any lag, with masks, embeddings
and copied blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import define, field
from tests.core import test_engine
from tests.core.test_engine import assert_same, ids, mixed_requests, prompt_of, run

from inferno import LLM
from inferno.core.engine import Engine
from inferno.core.runner import LaunchedStep, ModelRunner
from inferno.device import Arriving
from inferno.errors import OutOfMemoryError
from inferno.plan import Options, open_model
from inferno.request.requests import EngineOutput, FinishReason, Pooling, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike

reference, checkpoint = test_engine.reference, test_engine.checkpoint


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Engine:
    return load(checkpoint)


def load(ref: Path, lag: int = 0, *, overlaps: bool = False, **options: Any) -> Engine:
    """`overlaps`: draws leave their tokens on the device, as on a GPU."""
    given = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "block_size": 8, "device": "cpu"}
    with (
        open_model(str(ref), Options(**{**given, **options})) as opened,
        pytest.MonkeyPatch.context() as patch,
    ):
        runner = partial(ModelRunner, overlaps=overlaps)
        patch.setattr("inferno.core.runner.ModelRunner", runner)
        engine = Engine.load(opened)
    assert engine._lag == int(overlaps)
    engine._lag = lag
    return engine


@alike
@pytest.mark.parametrize("speculative", [None, "ngram"])
@pytest.mark.parametrize(("lag", "overlaps"), [(2, False), (0, True), (1, True), (3, True)])
def test_a_lag_changes_no_token(
    checkpoint: Path, plain: Engine, lag: int, overlaps: bool, speculative: str | None
) -> None:
    late = load(checkpoint, lag, overlaps=overlaps, speculative=speculative)
    expected = run(plain, mixed_requests())
    answers = run(late, mixed_requests())
    assert answers.keys() == expected.keys()
    for name, outputs in expected.items():
        assert_same(answers[name], outputs)


@pytest.mark.parametrize("lag", [1, 2])
def test_rows_that_change_owners_get_no_token_of_another(
    checkpoint: Path, plain: Engine, lag: int
) -> None:
    """Short requests of one row each, whose tokens the host learns when the row has another
    owner."""
    requests = [
        Request(
            id=str(i),
            token_ids=prompt_of(i, 3 + i % 4),
            params=SamplingParams(temperature=1.0, seed=i, max_tokens=1 + i % 3),
        )
        for i in range(12)
    ]
    expected = run(plain, requests)
    answers = run(load(checkpoint, lag, overlaps=True, max_num_seqs=2), requests)
    assert {name: ids(outputs) for name, outputs in answers.items()} == {
        name: ids(outputs) for name, outputs in expected.items()
    }


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches of steps, and the waits for their tokens, in order."""
    events, arriving, launch = list[str](), Arriving.values, ModelRunner.launch

    def waited(values: Arriving) -> list[int]:
        events.append("wait")
        return arriving(values)

    def launched(runner: ModelRunner, *given: Any) -> LaunchedStep:
        events.append("launch")
        return launch(runner, *given)

    monkeypatch.setattr(Arriving, "values", waited)
    monkeypatch.setattr(ModelRunner, "launch", launched)
    return events


def test_a_step_is_launched_before_the_last_ones_tokens_are_known(
    checkpoint: Path, events: list[str]
) -> None:
    """Only steps with a request that needs the host wait for their draw."""
    engine = load(checkpoint, 1, overlaps=True)
    params = SamplingParams(temperature=0.9, top_p=0.8, max_tokens=4, seed=1)
    run(engine, [Request(id="a", token_ids=(1, 2, 3), params=params)])
    assert events == ["launch", "launch", "wait", "launch", "wait", "launch", "wait", "wait"]
    events.clear()
    params = SamplingParams(temperature=0.9, max_tokens=4, seed=1, logprobs=1)
    run(engine, [Request(id="b", token_ids=(1, 2, 3), params=params)])
    assert events == ["launch"] * 4


def test_a_lag_delays_results_by_that_many_steps(checkpoint: Path) -> None:
    engine = load(checkpoint, 2)
    params = SamplingParams(temperature=0, max_tokens=4)
    engine.submit(Request(id="a", token_ids=(1, 2, 3), params=params))
    assert [len(engine.step()) for _ in range(6)] == [0, 0, 1, 1, 1, 1]
    assert not engine.busy


def test_tokens_drawn_after_the_end_are_discarded(checkpoint: Path, plain: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=20)
    first = ids(run(plain, [Request(id="a", token_ids=prompt_of(2, 9), params=params)])["a"])
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=(first[5],))
    engine = load(checkpoint, 2)
    outputs = run(engine, [Request(id="a", token_ids=prompt_of(2, 9), params=params)])["a"]
    assert ids(outputs) == first[: first.index(first[5]) + 1]
    assert outputs[-1].finish is FinishReason.STOP
    assert engine.stats().num_running == 0 and engine.stats().kv_usage == 0


# --- masks ----------------------------------------------------------------------------------------


@define
class Cycle:
    """An automaton: output token i must be in class i, modulo their number."""

    classes: Sequence[Sequence[int]]
    position: int = 0
    seen: list[int] = field(factory=list)
    is_done: bool = False
    error: str = ""
    compiler: Any = None
    time: Any = None

    def allowed(self, offset: int = 0) -> Sequence[int]:
        return self.classes[(self.position + offset) % len(self.classes)]

    def fill(self, drafts: Sequence[int], mask_NW: Any) -> None:
        for offset, mask_W in enumerate(mask_NW):
            for token_id in self.allowed(offset):
                mask_W.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)

    def ends(self, token_id: int | None) -> bool:
        return False

    def finish_fill(self, mask_NW: Any) -> None:
        assert mask_NW.any()

    def fail(self, error: str) -> None:
        self.error = error

    def allows(self, token_id: int) -> bool:
        return token_id in self.allowed()

    def count_valid(self, token_ids: Sequence[int]) -> int:
        flags = [token_id in self.allowed(i) for i, token_id in enumerate(token_ids)]
        return [*flags, False].index(False)

    def forced(self) -> Sequence[int]:
        """Also where another token is possible: suggestions are verified."""
        return [self.allowed(offset)[0] for offset in range(3)]

    def accept(self, token_id: int) -> bool:
        assert token_id in self.allowed()
        self.seen.append(token_id)
        self.position += 1
        return True


CLASSES = ((3, 5, 64, 119), (0, 31, 32), (77,))
PARAMS = [
    SamplingParams(temperature=0, max_tokens=9),
    SamplingParams(temperature=5.0, seed=1, max_tokens=9),
    SamplingParams(temperature=5.0, seed=2, top_k=2, max_tokens=9),
    SamplingParams(temperature=5.0, seed=3, top_p=0.3, logprobs=2, max_tokens=9),
    SamplingParams(temperature=1.0, seed=4, frequency_penalty=2.0, max_tokens=9),
    SamplingParams(temperature=0, logit_bias={4: 100.0, 5: -100.0, 3: -100.0}, max_tokens=9),
]


@pytest.mark.parametrize("speculative", [None, "ngram"])
@pytest.mark.parametrize(
    ("lag", "overlaps"), [pytest.param(0, False, marks=pytest.mark.slow), (2, False), (1, True)]
)
def test_masks_hold_at_any_lag(
    checkpoint: Path, lag: int, overlaps: bool, speculative: str | None
) -> None:
    requests = [
        Request(id=f"{kind}{i}", token_ids=prompt_of(i, 12), params=params)
        for i, params in enumerate(PARAMS)
        for kind in ("free", "held")
    ]
    engine = load(checkpoint, lag, overlaps=overlaps, speculative=speculative)
    engine._constrain = lambda r: Cycle(CLASSES) if r.id.startswith("held") else None
    free = run(load(checkpoint), [r for r in requests if r.id.startswith("free")])
    answers = run(engine, requests)
    for name, outputs in answers.items():
        if name.startswith("free"):
            assert ids(outputs) == ids(free[name]), "a mask constrains its own row only"
        else:
            assert all(t in CLASSES[i % 3] for i, t in enumerate(ids(outputs)))
            assert len(outputs) == 9
    assert not engine._constraints.held, "ended requests leave nothing"
    assert not {3, 5} & set(ids(answers["held5"])), "the mask is applied after the bias"


def test_steps_with_masks_are_launched_before_tokens_are_known(
    checkpoint: Path, events: list[str]
) -> None:
    """The draw of a token waits for the one before it, as its mask does; the model does not."""
    requests = [
        Request(id=str(i), token_ids=prompt_of(i, 12), params=params)
        for i, params in enumerate(PARAMS)
        if params.logprobs is None
    ]
    engine, late = load(checkpoint), load(checkpoint, 1, overlaps=True)
    engine._constrain = late._constrain = lambda request: Cycle(CLASSES)
    expected = run(engine, requests)
    events.clear()
    answers = run(late, requests)
    assert {name: ids(outputs) for name, outputs in answers.items()} == {
        name: ids(outputs) for name, outputs in expected.items()
    }
    assert events[:5] == ["launch", "launch", "wait", "launch", "wait"]


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_mask_that_leaves_one_impossible_token_draws_it(checkpoint: Path, overlaps: bool) -> None:
    engine = load(checkpoint, int(overlaps), overlaps=overlaps)
    engine._constrain = lambda request: Cycle([[9]])
    params = SamplingParams(temperature=1.0, logit_bias={9: -100.0}, max_tokens=3)
    assert ids(run(engine, [Request(id="a", token_ids=(1, 2), params=params)])["a"]) == [9, 9, 9]


# --- embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("budget", [256, 32])
def test_embeddings_are_transformers(
    checkpoint: Path, reference: Any, pooling: Pooling, budget: int
) -> None:
    engine = load(checkpoint, max_num_batched_tokens=budget)
    prompts = [prompt_of(i, length) for i, length in enumerate((1, 8, 9, 40, 100))]
    for _ in range(2):  # the second time, blocks are cached
        answers = run(
            engine,
            [Request(id=str(i), token_ids=p, pooling=pooling) for i, p in enumerate(prompts)]
            + [Request(id="text", token_ids=prompts[3], params=SamplingParams(temperature=0))],
        )
        for i, prompt in enumerate(prompts):
            [output] = answers[str(i)]
            assert output.token_id is None and output.finish is FinishReason.STOP
            with torch.inference_mode():
                hidden = reference.model(torch.tensor([prompt])).last_hidden_state[0]
            expected = hidden[-1] if pooling == "last" else hidden.mean(0)
            torch.testing.assert_close(
                torch.tensor(output.embedding), expected, rtol=1e-4, atol=1e-4
            )
        assert len(answers["text"]) == 16
    assert engine.stats().kv_usage == 0


def test_llm_embeds() -> None:
    with LLM("demo", device="cpu") as llm:
        near, same, far = llm.embed(["def f(x):", "def f(x):", "Once upon a time"])
        [raw] = llm.embed("def f(x):", pooling="mean", normalize=False)
    assert near == same != far
    assert sum(x * x for x in near) == pytest.approx(1)
    assert sum(x * x for x in raw) != pytest.approx(1)


# --- copied blocks --------------------------------------------------------------------------------


def outputs_of(engine: Engine, count: int, length: int) -> list[list[EngineOutput]]:
    """Seeded outputs of one prompt."""
    requests = [
        Request(
            id=str(i),
            token_ids=prompt_of(4, length),
            params=SamplingParams(temperature=1.0, seed=i, max_tokens=20),
        )
        for i in range(count)
    ]
    answers = run(engine, requests)
    return [answers[str(i)] for i in range(count)]


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("length", [7, 8, 9, pytest.param(30, marks=pytest.mark.slow)])
def test_outputs_of_one_prompt_copy_its_last_block(
    checkpoint: Path, plain: Engine, length: int, lag: int
) -> None:
    forked = outputs_of(load(checkpoint, lag), 4, length)
    uncached = load(checkpoint, cache_policy="none", max_num_seqs=1)
    for ours, theirs in zip(forked, outputs_of(uncached, 4, length), strict=True):
        assert ids(ours) == ids(theirs)
    if length == 30:
        assert [outputs[0].num_cached for outputs in forked] == [0, 29, 29, 29]


@pytest.mark.parametrize("lag", [1, 2])
def test_drafts_pay_with_steps_in_flight_too(checkpoint: Path, plain: Engine, lag: int) -> None:
    """A sequence waits for its last token if drafts after it pay."""
    params = SamplingParams(temperature=0, max_tokens=40)
    request = Request(id="a", token_ids=prompt_of(1, 9), params=params)
    engine = load(checkpoint, lag, speculative=str(checkpoint))
    assert ids(run(engine, [request])["a"]) == ids(run(plain, [request])["a"])
    assert engine.stats().accepted_tokens >= 25, "the draft model is the model itself"


# --- errors ---------------------------------------------------------------------------------------


@alike
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("call", ["launch", "draw", "result"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_engine_goes_on_after_an_error_in_a_step(
    checkpoint: Path, plain: Engine, lag: int, call: str, error: type[BaseException]
) -> None:
    engine = load(checkpoint, lag, overlaps=lag > 0)
    requests = mixed_requests()
    answers: dict[str, list[EngineOutput]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    owner = ModelRunner if call == "launch" else LaunchedStep
    failed = 0
    while engine.busy:
        with pytest.MonkeyPatch.context() as patch:
            if engine.stats().steps == 3 and not failed:
                patch.setattr(owner, call, lambda *given: raised(error))
                failed = 1
                told = OutOfMemoryError if error is MemoryError else error
                with pytest.raises(told):
                    engine.step()
                engine.abort("0")
                continue
            for output in engine.step():
                answers[output.request_id].append(output)
        engine.check()
    assert failed and engine.stats().kv_usage == 0
    expected = run(plain, mixed_requests())
    for name, outputs in expected.items():
        if name != "0":
            assert ids(answers[name]) == ids(outputs)


def raised(error: type[BaseException]) -> None:
    raise error
