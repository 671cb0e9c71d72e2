"""What a model, its proposer and the trial of its memory are told of the plan."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from attrs import evolve, field, frozen

from inferno.contracts import DraftParts, Proposer
from inferno.core.runner.parts.prompts import pooling
from inferno.core.runner.tables import StepArrays
from inferno.core.types import NewSequence, Slice, Step
from inferno.nn import Rope
from inferno.plan import Opened, Options, open_model, trial_lengths, trial_plan
from inferno.request.requests import EngineOutput, Request
from inferno.weights.loading import load_drafter, load_model
from inferno.weights.measure import measure

CONTEXT = 96


def opened(**changes: Any) -> Opened:
    return open_model("demo", Options(device="cpu", max_model_len=CONTEXT, **changes))


def test_rotations_are_made_for_the_longest_context_of_the_plan() -> None:
    with opened() as demo:
        assert demo.plan.max_model_len == CONTEXT < demo.config.max_position_embeddings
        ropes = [m for m in load_model(demo).modules() if isinstance(m, Rope)]
    assert ropes and {rope._longest for rope in ropes} == {CONTEXT}


def test_a_proposer_is_built_with_the_model_and_the_context_of_the_plan() -> None:
    built: list[DraftParts] = []
    proposer = Proposer(name="noted", build=cast(Callable[..., Any], built.append))
    with opened(speculative="ngram") as demo:
        model = load_model(demo)
        load_drafter(evolve(demo, parts=evolve(demo.parts, proposer=proposer)), model, None)
    [parts] = built
    assert cast(object, parts.model) is model and parts.max_model_len == CONTEXT
    assert parts.draft is None and parts.mtp is None


@frozen
class Steps:
    """An engine whose every step ends a request, and a runner that captures nothing."""

    lag: int
    asked: list[list[Request]] = field(factory=lambda: [[]])

    @property
    def busy(self) -> bool:
        return bool(self.asked[-1])

    def submit(self, request: Request) -> None:
        self.asked[-1].append(request)

    def step(self) -> list[EngineOutput]:
        self.asked.append([])
        return []

    def capture_ahead(self, most: int) -> int:
        return 0

    def forget_captures(self) -> None:
        return None


def trial_of(lag: int) -> list[list[Request]]:
    steps = Steps(lag)
    with opened() as demo:
        plan = demo.plan
    free = plan.fixed_bytes + trial_plan(plan).kv_bytes
    measure(plan, [], lambda _: (steps, steps), lambda: plan.memory_limit - free, plan.memory_limit)
    assert steps.asked.pop() == []
    return steps.asked


def test_where_steps_overlap_a_trial_draws_in_the_way_that_waits_for_nothing_too() -> None:
    [largest, plain, *others] = trial_of(lag=1)
    with opened() as demo:
        lengths = trial_lengths(demo.plan)
    assert [len(request.token_ids) for request in largest] == lengths
    assert [request.token_ids for request in plain] == [(0,)] * len(lengths)
    for request in largest:
        assert request.params.logprobs == request.params.prompt_logprobs == 1
    for request in plain:
        assert request.params.logprobs is request.params.prompt_logprobs is None
        assert request.params == evolve(largest[0].params, logprobs=None, prompt_logprobs=None), (
            "it takes no less memory otherwise"
        )
    for request in [request for each in others for request in each]:
        assert request.params.logprobs is request.params.prompt_logprobs is None
    assert len(trial_of(lag=0)) == 1


def test_a_reranker_is_pooled_by_its_own_scores() -> None:
    model = SimpleNamespace(score=lambda hidden_ND: hidden_ND[:, :2] * 3)
    part, results = pooling(model), SimpleNamespace(embeddings={}, broken={})
    request = Request(id="pair", token_ids=(1, 2, 3), pooling="score")
    part.admit(NewSequence(0, request, (1, 2, 3)))
    arrays = cast(StepArrays, SimpleNamespace(slice_starts=[0]))
    hidden_TD = torch.arange(12.0).reshape(3, 4)
    part.after(Step((Slice(0, 0, 3, False),)), arrays, hidden_TD, cast(Any, results))
    assert results.embeddings == {0: (24.0, 27.0)}
