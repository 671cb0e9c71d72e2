"""Drafts for speculative decoding: what a proposer sees of steps, and what it computes with.

Suffixes: T tokens of the step, S sampled rows, D hidden, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

import numpy as np
from attrs import define
from torch import Tensor

from inferno.contracts import Drafter, DraftRequest, Model, Span
from inferno.core.runner.inputs import InputSpec
from inferno.core.runner.parts.part import PartResults, StepPart
from inferno.core.runner.replay import Replays
from inferno.core.runner.tables import StepArrays, Tables
from inferno.core.types import NewSequence, Slice, Step
from inferno.nn.batch import Batch

log = logging.getLogger("inferno.runner")


@define(eq=False)
class Drafting(StepPart):
    """A proposer at work, and its `contracts.Lookahead`. What it computes is no step of the model:
    other parts do not see it."""

    drafter: Drafter | None
    """None once it has failed."""
    tables: Tables
    spec: InputSpec
    peek: Callable[[Tensor, Sequence[int], int], list[int]]
    """Draws drafts, as `draw_draft`."""
    vocab_size: int
    """Of the model."""
    draft_vocab_size: int
    begin: Callable[[Batch], None]
    """Called with every batch that is computed."""
    draft_replays: Replays | None = None
    """Captured steps of the draft model."""
    is_shared: bool = False
    """Whether several ranks compute with the same proposer, which all must do or none."""

    def admit(self, new: NewSequence) -> None:
        if self.drafter is not None:
            with self._trusting():
                self.drafter.admit(new.row, new.num_computed)

    def refuses_replay(self, arrays: StepArrays) -> bool:
        return self.drafter is not None and self.drafter.sees_steps

    def after(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, results: PartResults
    ) -> None:
        if self.drafter is not None and self.drafter.sees_steps:
            self.show(arrays.spans, hidden_TD)

    def show(self, spans: Sequence[Span], hidden_TD: Tensor) -> None:
        """Show the drafter what was computed."""
        if self.drafter is not None:
            with self._trusting():
                self.drafter.computed(spans, hidden_TD, self)

    def propose(self, step: Step) -> dict[int, list[int]]:
        """Return the drafts of the slices that take some and were given none, by row."""
        wanted = [s for s in step.slices if s.num_drafts and s.row not in step.drafts]
        drafts: dict[int, list[int]] = {}
        if not wanted or self.drafter is None:
            return drafts
        ids = self.tables.token_ids
        requests = [
            DraftRequest(s.row, ids[s.row, : s.start + s.num_tokens], s.num_drafts) for s in wanted
        ]
        with self._trusting():
            proposed = self.drafter.propose(requests, self)
            drafts = {
                s.row: self._valid(ids[: s.num_drafts])
                for s, ids in zip(wanted, proposed, strict=True)
            }
        return {row: ids for row, ids in drafts.items() if ids}

    @contextmanager
    def _trusting(self) -> Iterator[None]:
        """Context of a call of the drafter. Drafts are optional: its fault must not end the
        engine."""
        try:
            yield
        except Exception:
            if self.is_shared:
                raise
            log.exception("the proposer of drafts failed; steps go on without drafts")
            self.drafter = None

    def _valid(self, token_ids: Sequence[int]) -> list[int]:
        """Return the drafts before the first that is no token of the model."""
        return list(takewhile(lambda id: 0 <= id < self.vocab_size, map(int, token_ids)))

    # --- contracts.Lookahead ----------------------------------------------------------------------

    def batch(self, spans: Sequence[Span], shift: int = 0) -> Batch:
        step = Step(tuple([Slice(*span, True) for span in spans]))
        arrays = self.tables.lay_out(step, shift=shift)
        batch = self.spec.inputs_of(arrays).batch(arrays)
        self.begin(batch)
        return batch

    def logits(self, model: Model, spans: Sequence[Span]) -> Tensor:
        short = all(span.num_tokens <= 2 for span in spans)
        if self.draft_replays is not None and short:  # each token as a sequence, to be replayed
            slices = [Slice(row, start + i, 1, True) for row, start, n in spans for i in range(n)]
            if (logits_TV := self.draft_replays.run(self._laid_out(slices))) is not None:
                last = np.cumsum([span.num_tokens for span in spans]) - 1
                return logits_TV if len(last) == len(slices) else logits_TV[last]
        arrays = self._laid_out([Slice(*span, True) for span in spans])
        inputs = self.spec.inputs_of(arrays)
        batch = inputs.batch(arrays)
        self.begin(batch)
        return model.logits(model(batch)[inputs.last_L])

    def _laid_out(self, slices: Sequence[Slice]) -> StepArrays:
        """Pack slices for the draft model. Tokens that only the model has become token 0."""
        arrays = self.tables.lay_out(Step(tuple(slices)))
        arrays.token_ids[arrays.token_ids >= self.draft_vocab_size] = 0
        return arrays

    def write(self, row: int, position: int, token_id: int) -> None:
        self.tables.token_ids[row, position] = token_id

    def draw_draft(self, logits_SV: Tensor, rows: Sequence[int], offset: int) -> list[int]:
        return self.peek(logits_SV, rows, offset)
