"""Prefill and decode apart: the first token is drawn by the instance that computes the prompt, and
comes before the last blocks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from attrs import evolve
from tests.stores.test_apart import GREEDY, PROMPTS, SEEDED, apart, run
from tests.stores.test_stored_caches import load

from inferno.core.engine import Engine
from inferno.llm.outputs import OutputBuilder
from inferno.request.requests import EngineOutput, FinishReason, Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores.linked import _drawing_of, drawn_elsewhere

pytest.importorskip("inferno_disaggregated")
pytest.importorskip("inferno_demo")

PENALTIES = SamplingParams(
    temperature=0.8, seed=5, max_tokens=12, repetition_penalty=1.3, presence_penalty=0.5, top_k=20
)


@pytest.fixture(scope="module")
def one() -> Engine:
    return load("demo")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with apart("demo", f"shm://test-{secrets.token_hex(6)}") as (_, engine):
        yield engine


def outputs_of(engine: Engine, params: SamplingParams, **given: Any) -> list[EngineOutput]:
    engine.submit(Request(id="0", token_ids=tuple(PROMPTS[0]), params=params, **given))
    return run(engine)


def tokens(outputs: Sequence[EngineOutput]) -> list[int | None]:
    return [output.token_id for output in outputs]


def is_given(outputs: Sequence[EngineOutput]) -> bool:
    """Whether another instance has drawn the first token: the second says what was cached."""
    given = not outputs[0].queue_seconds
    assert outputs[int(given)].num_remote == 96
    return given


@pytest.mark.parametrize("params", [GREEDY, SEEDED, PENALTIES], ids=["greedy", "seeded", "more"])
def test_the_first_token_is_that_of_one_engine(
    engine: Engine, one: Engine, params: SamplingParams
) -> None:
    drawn = outputs_of(engine, params)
    assert tokens(drawn) == tokens(outputs_of(one, params)) and is_given(drawn)
    assert engine.stats().generated_tokens == len(drawn) == engine.stats().generated_tokens


def test_without_a_seed_it_is_drawn_there_with_the_requests_own(
    engine: Engine, one: Engine
) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    drawn = outputs_of(engine, params, unseeded=77)
    assert tokens(drawn) == tokens(outputs_of(one, params, unseeded=77)) and is_given(drawn)


def test_end_tokens_that_may_not_come_yet_do_not(engine: Engine, one: Engine) -> None:
    [first, *_] = tokens(outputs_of(one, GREEDY))
    params = evolve(GREEDY, min_tokens=2, max_tokens=4, ignore_eos=False)
    ends = {"eos_token_ids": (first,)}
    drawn = outputs_of(engine, params, **ends)
    assert tokens(drawn) == tokens(outputs_of(one, params, **ends)) != [first]
    assert is_given(drawn)


def test_a_first_token_that_ends_the_answer_is_drawn_here(engine: Engine, one: Engine) -> None:
    [first, *_] = tokens(outputs_of(one, GREEDY))
    assert first is not None
    for params in (evolve(GREEDY, max_tokens=1), evolve(GREEDY, stop_token_ids=(first,))):
        engine._scheduler._groups.reset()
        [output] = outputs_of(engine, params)
        assert output.token_id == first and output.num_remote == 96
        by_limit = params.max_tokens == 1
        assert output.finish == (FinishReason.LENGTH if by_limit else FinishReason.STOP)


def test_what_needs_more_than_logits_is_drawn_here(engine: Engine, one: Engine) -> None:
    params = evolve(GREEDY, logprobs=2)
    drawn, right = outputs_of(engine, params), outputs_of(one, params)
    assert tokens(drawn) == tokens(right) and drawn[0].logprobs is not None
    assert not is_given(drawn)
    needs: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "a+"}},
        {"bad_words": ("no",)},
        {"prompt_logprobs": 1},
        {"logits_processors": [{"name": "x"}]},
    ]
    for more in needs:
        request = Request(id="a", token_ids=(1,), params=SamplingParams(**more))
        assert drawn_elsewhere(request) is None, more
    biased = SamplingParams(logit_bias=dict.fromkeys(range(200_000), 1.0))
    assert not _drawing_of(Request(id="a", token_ids=(1,), params=biased)), "too much to send"
    pooled = Request(id="a", token_ids=(1,), pooling="mean")
    assert drawn_elsewhere(pooled) is None


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_a_token_outside_the_vocabulary_is_not_taken(
    engine: Engine, one: Engine, token_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = engine._store
    kind: Any = type(store.index)
    take = kind.take_first_tokens

    def lies(index: Any) -> list[tuple[str, int]]:
        return [(owner, token_id) for owner, _ in take(index)]

    monkeypatch.setattr(kind, "take_first_tokens", lies)
    drawn = outputs_of(engine, GREEDY)
    assert tokens(drawn) == tokens(outputs_of(one, GREEDY)) and not is_given(drawn)


def test_a_caller_has_what_was_cached_with_a_later_token() -> None:
    request = Request(id="0", token_ids=(1, 2, 3), params=GREEDY)
    builder = OutputBuilder(request, 0, None)
    builder.push(EngineOutput("0", 5))
    first = builder.take()
    assert first is not None and first.num_cached == 0
    builder.push(EngineOutput("0", 6, num_cached=2, num_remote=1, queue_seconds=0.5))
    second = builder.take()
    assert second is not None
    assert (second.num_cached, second.num_remote, second.queue_seconds) == (2, 1, 0.5)


def asked_with(engine: Engine, one: Engine, drawing: bytes, patched: pytest.MonkeyPatch) -> bool:
    """Whether another instance draws the first token if this is how it is asked to."""
    patched.setattr("inferno.stores.linked._drawing_of", lambda request: drawing)
    engine.submit(Request(id="0", token_ids=tuple(PROMPTS[0]), params=GREEDY))
    drawn = run(engine)
    assert tokens(drawn) == tokens(outputs_of(one, GREEDY))
    return not drawn[0].queue_seconds


def test_what_cannot_be_read_is_refused(
    engine: Engine, one: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [{"params": {"temperature": t}, "eos_token_ids": []} for t in ("hot", -3.0)]
    for drawing in (b"\xc1", *map(msgspec.msgpack.encode, wrong)):
        assert not asked_with(engine, one, drawing, monkeypatch)
        engine._scheduler._groups.reset()
    assert engine.stats().fallbacks == {"refused": 3}


def test_an_end_draws_one_token_whatever_is_asked(
    engine: Engine, one: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More would take its time, and masks are not there."""
    greedy = {"temperature": 0.0, "max_tokens": 10_000, "ignore_eos": True}
    asked = {"params": greedy, "eos_token_ids": []}
    assert asked_with(engine, one, msgspec.msgpack.encode(asked), monkeypatch)
    engine._scheduler._groups.reset()
    scored = {"params": {**greedy, "logprobs": 3}, "eos_token_ids": []}
    assert asked_with(engine, one, msgspec.msgpack.encode(scored), monkeypatch)


def test_a_request_whose_blocks_come_while_the_engine_rests_goes_on(
    engine: Engine, one: Engine
) -> None:
    """As a paused one does."""
    engine.submit(Request(id="0", token_ids=tuple(PROMPTS[0]), params=GREEDY))
    assert engine.step() == [] and engine.busy
    store: Any = engine._store
    coming = store.index._coming["0"]
    for _ in range(400):
        engine.rest()
        if not any(coming.wanted) and not store.mover.news:
            break
        time.sleep(0.005)
    outputs = [output for _ in range(200) for output in engine.step()]
    assert tokens(outputs) == tokens(outputs_of(one, GREEDY))
