"""Drafts of a pipeline's last stage: steps are launched with them, before those in flight are
computed."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from attrs import define, evolve, field
from torch import Tensor

from inferno.constraints import Drafts
from inferno.core.runner import (
    LaunchedStep,
    ModelRunner,
    PartResults,
    StepArrays,
    StepPart,
    Tables,
)
from inferno.core.runner.parts import Drafting
from inferno.core.types import Step
from inferno.plan import Opened
from inferno.process.ranks.messages import Drawn

Array = np.ndarray[Any, Any]


def is_shared(opened: Opened) -> bool:
    """Whether all ranks propose drafts together: with layers that they share as those of the
    model."""
    proposer = opened.parts.proposer
    return proposer is not None and proposer.needs == "mtp"


def is_late(opened: Opened) -> bool:
    """Whether the ranks of the last stage compute a step only when the first of them does, as they
    propose drafts together in the meantime."""
    ranks = opened.plan.ranks
    if ranks is None or ranks.stages == 1 or ranks.shard.ranks == 1:
        return False
    return is_shared(opened) and (opened.span is None or opened.span.ends)


def learn_verified(
    tables: Tables, arrays: StepArrays, owners: Array, token_ids: list[list[int]]
) -> None:
    """Append tokens as `Tables.append_verified` does, in rows that have the same `owners` as when
    the step was launched."""
    same = tables.owners[arrays.sampling_rows] == owners
    own_ids = [ids if is_own else [] for ids, is_own in zip(token_ids, same, strict=True)]
    tables.append_verified(arrays, own_ids)


@define(eq=False)
class Proposing(StepPart):
    """What proposes drafts, with the tokens and blocks of running sequences as of the step that was
    launched last. Those of the runner are as of the one that was computed last, when rows may have
    had other owners."""

    drafting: Drafting
    tables: Tables
    _in_flight: deque[tuple[Step, Array]] = field(factory=deque)
    """Steps that are not computed yet, with the owners of their slices' rows."""

    @classmethod
    def of(cls, runner: ModelRunner) -> Proposing | None:
        """Take over a runner's proposer, if it has one."""
        if (drafting := runner.drafting) is None:
            return None
        like = runner._tables
        tables = Tables(like.num_rows, like.max_model_len, like.block_size, like.num_groups)
        drafting.tables = tables
        proposing = cls(drafting, tables)
        kept = (part for part in runner._parts if part is not drafting)
        runner._parts = (*kept, proposing)
        return proposing

    def launched(self, step: Step) -> Drafts:
        """Take note of a step that is launched, and return its drafts."""
        self.tables.update(step)
        for new in step.new_sequences:
            self.drafting.admit(new)
        # Of a row whose prompt is still in flight, the sampler knows nothing yet.
        busy = {piece.row for each, _ in self._in_flight for piece in each.slices}
        rows = [piece.row for piece in step.slices]
        self._in_flight.append((step, self.tables.owners[rows]))
        free = tuple(piece for piece in step.slices if piece.row not in busy)
        return self.drafting.propose(evolve(step, slices=free))

    def computed(self, launched: LaunchedStep, drawn: Drawn) -> None:
        """Take the tokens that the first step in flight has drawn."""
        step, owners = self._in_flight.popleft()
        if (arrays := launched.arrays) is not None and drawn:
            drawing = [piece.samples for piece in step.slices]
            learn_verified(self.tables, arrays, owners[drawing], drawn)

    def refuses_replay(self, arrays: StepArrays) -> bool:
        return self.drafting.refuses_replay(arrays)

    def after(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, results: PartResults
    ) -> None:
        """Show the proposer what was computed of rows that have the same owner as then."""
        if (drafter := self.drafting.drafter) is None or not drafter.sees_steps:
            return
        _, owners = self._in_flight[0]
        spans = arrays.spans
        same = self.tables.owners[[span.row for span in spans]] == owners
        parts = torch.split(hidden_TD, [span.num_tokens for span in spans])
        pairs = [(span, x) for span, x, is_own in zip(spans, parts, same, strict=True) if is_own]
        if pairs:
            own_spans, hidden = zip(*pairs, strict=True)
            self.drafting.show(own_spans, torch.cat(hidden))
