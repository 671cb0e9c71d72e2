"""Prompts whose results are more than tokens: log-probabilities, or an embedding.

Suffixes: T tokens of the step, N tokens of a slice, D hidden.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field
from torch import Tensor, nn

from inferno.core.runner.parts.part import PartResults, StepPart
from inferno.core.runner.tables import StepArrays
from inferno.core.types import NewSequence, Step
from inferno.request.requests import Logprobs
from inferno.sampling import Pooled, PromptLogprobs

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

    pending: dict[int, PromptResult[Value]] = field(factory=dict, init=False)

    def result_of(self, new: NewSequence) -> PromptResult[Value] | None:
        """Return the empty result of a new sequence; None if its request wants none."""
        raise NotImplementedError

    def values_of(self, results: PartResults) -> dict[int, Value]:
        """Return where the step's complete values go, by row."""
        raise NotImplementedError

    def admit(self, new: NewSequence) -> None:
        self.pending.pop(new.row, None)
        if (result := self.result_of(new)) is not None:
            self.pending[new.row] = result

    def refuses_replay(self, arrays: StepArrays) -> bool:
        return bool(self.pending) and not self.pending.keys().isdisjoint(arrays.rows.tolist())

    def after(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, results: PartResults
    ) -> None:
        for i, (row, start, count, *_) in enumerate(step.slices) if self.pending else ():
            if (result := self.pending.get(row)) is None:
                continue
            first = int(arrays.slice_starts[i])
            if (value := result.add(hidden_TD[first : first + count], start)) is not None:
                del self.pending[row]
                self.values_of(results)[row] = value
                if result.broken is not None:
                    results.broken[result.request_id] = result.broken


@define(eq=False)
class PromptScores(PromptPart[tuple[Logprobs | None, ...]]):
    """Log-probabilities of prompts' own tokens."""

    model: nn.Module

    def result_of(self, new: NewSequence) -> PromptLogprobs | None:
        request, top = new.request, new.request.params.prompt_logprobs
        if top is None or request.pooling is not None:
            return None
        logits_of: Any = self.model.logits  # contracts.Model
        return PromptLogprobs(request.id, request.token_ids, top, logits_of)

    def values_of(self, results: PartResults) -> dict[int, tuple[Logprobs | None, ...]]:
        return results.prompt_logprobs


@define(eq=False)
class Pooling(PromptPart[tuple[float, ...]]):
    """Embeddings, and scores of the model's own head (`score`)."""

    model: nn.Module

    def result_of(self, new: NewSequence) -> Pooled | None:
        if (how := new.request.pooling) is None:
            return None
        score: Any = getattr(self.model, "score", None)  # asked of models that have one
        return Pooled(new.request.id, len(new.token_ids), how, score)

    def values_of(self, results: PartResults) -> dict[int, tuple[float, ...]]:
        return results.embeddings
