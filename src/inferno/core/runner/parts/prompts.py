"""Prompts whose results are more than tokens: log-probabilities, or an embedding.

Suffixes: T tokens of the step, N tokens of a slice, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field
from torch import Tensor

from inferno.core.runner.parts.part import PartResults, StepPart
from inferno.core.runner.replay import Replays
from inferno.core.runner.tables import StepArrays
from inferno.core.types import NewSequence, Step
from inferno.request.requests import Logprobs
from inferno.sampling import Pooled, PromptLogprobs
from inferno.weights.adapting import Adapting

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


class PromptResult(Protocol[Value_co]):
    """The result of the computed part of a prompt."""

    request_id: str
    broken: int | None
    """A position for which the model's output is not finite."""

    def add(self, hidden_ND: Tensor, start: int) -> Value_co | None:
        """Add the tokens of a slice. Returns the value once the prompt is complete."""
        ...


@define(eq=False)
class PromptPart(StepPart, Generic[Value]):
    """The rows whose prompts have a result of one kind."""

    result_of: Callable[[NewSequence], PromptResult[Value] | None]
    """Returns the empty result of a new sequence; None if its request wants none."""
    values_of: Callable[[PartResults], dict[int, Value]]
    """Returns where the step's complete values go, by row."""
    pending: dict[int, PromptResult[Value]] = field(factory=dict)

    def admit(self, new: NewSequence) -> None:
        self.pending.pop(new.row, None)
        if (result := self.result_of(new)) is not None:
            self.pending[new.row] = result

    def refuses_replay(self, arrays: StepArrays) -> bool:
        return bool(self.pending) and not self.pending.keys().isdisjoint(arrays.rows.tolist())

    def after(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, results: PartResults
    ) -> None:
        for i, s in enumerate(step.slices) if self.pending else ():
            if (result := self.pending.get(row := s.row)) is None:
                continue
            first = int(arrays.slice_starts[i])
            if (value := result.add(hidden_TD[first : first + s.num_tokens], s.start)) is not None:
                del self.pending[row]
                self.values_of(results)[row] = value
                if result.broken is not None:
                    results.broken[result.request_id] = result.broken


def prompt_logprobs(
    model: Any, adapting: Adapting[Replays] | None = None
) -> PromptPart[tuple[Logprobs | None, ...]]:
    """Return the part for log-probabilities of prompts' own tokens."""

    def result_of(new: NewSequence) -> PromptLogprobs | None:
        logits = model.logits if adapting is None else adapting.logits_of(new, model.logits)
        return PromptLogprobs.of(new.request, logits)

    return PromptPart(result_of, attrgetter("prompt_logprobs"))


def pooling(model: Any) -> PromptPart[tuple[float, ...]]:
    """Return the part for embeddings, and for scores of models that have `score`."""
    score: Any = getattr(model, "score", None)
    return PromptPart(
        lambda new: Pooled.of(new.request, len(new.token_ids), score), attrgetter("embeddings")
    )
