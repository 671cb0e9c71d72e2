"""Results that rows collect over the chunks of their prompts.

Suffixes: P prompt positions, T tokens of the step, N tokens of a slice, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field
from torch import Tensor, nn

from inferno.core.runner.tables import Array, StepArrays
from inferno.core.types import NewSequence, Step
from inferno.request.requests import Logprobs
from inferno.sampling import Pooled, PromptLogprobs

_LOGPROB_ROWS = 256
"""Prompt positions whose logits are in memory at once."""


@define
class Prompts:
    """The rows whose prompts have results: log-probabilities, or an embedding. Rows of aborted
    requests may be left until they are admitted again."""

    scored: dict[int, PromptLogprobs] = field(factory=dict)
    pooled: dict[int, Pooled] = field(factory=dict)
    broken: dict[str, int] = field(factory=dict)
    """By request, the position whose numbers are not finite, in the results that became complete
    since `take_broken`."""

    def admit(self, new: NewSequence) -> None:
        row, request = new.row, new.request
        self.scored.pop(row, None)
        self.pooled.pop(row, None)
        if request.pooling is not None:
            self.pooled[row] = Pooled(request.id, len(new.token_ids), request.pooling)
        elif (top := request.params.prompt_logprobs) is not None:
            self.scored[row] = PromptLogprobs(request.id, request.token_ids, top)

    def wait(self, rows: Array) -> bool:
        """Whether any of these rows collects results."""
        waiting = self.scored.keys() | self.pooled.keys()
        return bool(waiting) and not waiting.isdisjoint(rows.tolist())

    def take_broken(self) -> dict[str, int]:
        """Return `broken`, and empty it."""
        broken, self.broken = self.broken, {}
        return broken

    def embeddings(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, model: nn.Module
    ) -> dict[int, tuple[float, ...]]:
        """Add this step's tokens to the rows that pool. Returns the complete embeddings."""
        done = {}
        for i, (row, start, count, *_) in enumerate(step.slices):
            if (pooled := self.pooled.get(row)) is None:
                continue
            first = int(arrays.slice_starts[i])
            pooled.add(hidden_TD[first : first + count], start)
            if start + count == pooled.num_tokens:
                del self.pooled[row]
                if pooled.how == "score":
                    last_1D = hidden_TD[first + count - 1 : first + count]
                    pooled.vector_D = model.score(last_1D)[0]  # type: ignore[operator]
                vector_D = pooled.result()
                if not bool(vector_D.isfinite().all()):
                    self.broken[pooled.request_id] = start + count - 1
                done[row] = tuple(vector_D.tolist())
        return done

    def logprobs(
        self,
        step: Step,
        arrays: StepArrays,
        hidden_TD: Tensor,
        logits_of: Callable[[Tensor], Tensor],
    ) -> dict[int, tuple[Logprobs | None, ...]]:
        """Add this step's positions to the rows that want log-probabilities. Returns the complete
        ones."""
        done = {}
        for i, (row, start, count, *_) in enumerate(step.slices):
            if (wanted := self.scored.get(row)) is None:
                continue
            first = int(arrays.slice_starts[i])
            stop = min(count, len(wanted.token_ids) - 1 - start)
            for begin in range(0, stop, _LOGPROB_ROWS):
                end = min(begin + _LOGPROB_ROWS, stop)
                wanted.add(logits_of(hidden_TD[first + begin : first + end]), start + begin + 1)
            if start + count >= len(wanted.token_ids):
                del self.scored[row]
                if wanted.broken is not None:
                    self.broken[wanted.request_id] = wanted.broken
                done[row] = (None, *wanted.found)
        return done
