"""Drafts of a pipeline's last stage: steps are launched with them, before those in flight are
computed."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from attrs import define, evolve, field

from inferno.constraints import Drafts
from inferno.core.runner import LaunchedStep, Tables
from inferno.core.runner.parts import Drafting
from inferno.core.types import Step
from inferno.process.ranks.messages import Drawn


@define(eq=False)
class Proposing:
    """What proposes drafts, with the tokens and blocks of running sequences as of the step that was
    launched last. Those of the runner are as of the one that was computed last, when rows may have
    had other owners."""

    drafting: Drafting
    tables: Tables
    _in_flight: deque[tuple[Step, np.ndarray[Any, Any]]] = field(factory=deque)
    """Steps that are not computed yet, with the owners of the rows that draw."""

    @classmethod
    def of(cls, drafting: Drafting, like: Tables) -> Proposing:
        """Take over a runner's proposer, whose tables are `like`."""
        tables = Tables(like.num_rows, like.max_model_len, like.block_size, like.num_groups)
        drafting.tables = tables
        return cls(drafting, tables)

    def launched(self, step: Step) -> Drafts:
        """Take note of a step that is launched, and return its drafts."""
        self.tables.update(step)
        for new in step.new_sequences:
            self.drafting.admit(new)
        # Of a row whose prompt is still in flight, the sampler knows nothing yet.
        busy = {piece.row for each, _ in self._in_flight for piece in each.slices}
        drawing = [piece.row for piece in step.slices if piece.samples]
        self._in_flight.append((step, self.tables.owners[drawing]))
        free = tuple(piece for piece in step.slices if piece.row not in busy)
        return self.drafting.propose(evolve(step, slices=free))

    def computed(self, launched: LaunchedStep, drawn: Drawn) -> None:
        """Take the tokens that the first step in flight has drawn."""
        _, owners = self._in_flight.popleft()
        if (arrays := launched.arrays) is not None and drawn:
            self.tables.learn_verified(arrays, owners, drawn)
