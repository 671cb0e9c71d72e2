"""Results of prompts: log-probabilities of their tokens, and embeddings. A prompt may be computed
in chunks.

Suffixes: S rows of logits, N tokens of a slice, T tokens of the step, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import define, field
from torch import Tensor, nn

from inferno.core.runner.parts.part import PartResults, StepPart
from inferno.core.runner.tables import StepArrays
from inferno.core.types import NewSequence, Step
from inferno.sampling import Pooled, PromptLogprobs

_LOGPROB_ROWS = 256
"""Prompt positions whose logits are in memory at once."""

Result = TypeVar("Result")


@define(eq=False)
class PromptPart(StepPart, Generic[Result]):
    """The rows whose prompts have a result, as far as it is known."""

    pending: dict[int, Result] = field(factory=dict, init=False)

    def result_of(self, new: NewSequence) -> Result | None:
        """Return the empty result of a new sequence; None if its request wants none."""
        raise NotImplementedError

    def add(
        self, result: Result, row: int, hidden_ND: Tensor, start: int, results: PartResults
    ) -> bool:
        """Add the tokens of a slice that begins at position `start`. If the result is now complete,
        return True and add it to the step's."""
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
        if not self.pending:
            return
        starts = arrays.slice_starts.tolist()
        for first, (row, start, count, *_) in zip(starts, step.slices, strict=True):
            if (result := self.pending.get(row)) is not None:
                if self.add(result, row, hidden_TD[first : first + count], start, results):
                    del self.pending[row]


@define(eq=False)
class PromptScores(PromptPart[PromptLogprobs]):
    """Log-probabilities of prompts' tokens."""

    logits_of: Callable[[Tensor], Tensor]
    """Maps hidden states to logits: (S, D) -> (S, V)."""

    def result_of(self, new: NewSequence) -> PromptLogprobs | None:
        request, top = new.request, new.request.params.prompt_logprobs
        if top is None or request.pooling is not None:
            return None
        return PromptLogprobs(request.id, request.token_ids, top)

    def add(
        self, result: PromptLogprobs, row: int, hidden_ND: Tensor, start: int, results: PartResults
    ) -> bool:
        count = len(hidden_ND)
        stop = min(count, len(result.token_ids) - 1 - start)
        for begin in range(0, stop, _LOGPROB_ROWS):
            hidden_SD = hidden_ND[begin : min(begin + _LOGPROB_ROWS, stop)]
            result.add(self.logits_of(hidden_SD), start + begin + 1)
        if start + count < len(result.token_ids):
            return False
        if result.broken is not None:
            results.broken[result.request_id] = result.broken
        results.prompt_logprobs[row] = (None, *result.found)
        return True


@define(eq=False)
class Pooling(PromptPart[Pooled]):
    """Embeddings: hidden states of a prompt, reduced."""

    model: nn.Module
    """Its `score` makes the vector of a request that asks for one."""

    def result_of(self, new: NewSequence) -> Pooled | None:
        request = new.request
        if request.pooling is None:
            return None
        return Pooled(request.id, len(new.token_ids), request.pooling)

    def add(
        self, result: Pooled, row: int, hidden_ND: Tensor, start: int, results: PartResults
    ) -> bool:
        result.add(hidden_ND, start)
        stop = start + len(hidden_ND)
        if stop < result.num_tokens:
            return False
        if result.how == "score":
            result.vector_D = self.model.score(hidden_ND[-1:])[0]  # type: ignore[operator]
        vector_D = result.result()
        if not bool(vector_D.isfinite().all()):
            results.broken[result.request_id] = stop - 1
        results.embeddings[row] = tuple(vector_D.tolist())
        return True
