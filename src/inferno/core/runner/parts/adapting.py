"""Adapters: the slot of each token, and the adapters in slots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from inferno.core.runner.parts.part import StepPart
from inferno.core.runner.replay import Compute, Replays
from inferno.core.runner.tables import StepArrays
from inferno.core.types import NewSequence
from inferno.nn.batch import Batch
from inferno.weights.adapters import Adapters

Logits = Callable[[Tensor], Tensor]
"""Maps hidden states to logits."""


@define(eq=False)
class Adapting(StepPart):
    """Writes the slots of a step's tokens. Steps with adapters have captured shapes of their own,
    so that the others pay nothing."""

    adapters: Adapters
    num_rows: int
    own_replays: Replays | None = None
    slots_R: np.ndarray[tuple[int], np.dtype[np.int64]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots_R = np.full(self.num_rows, -1, np.int64)

    def admit(self, new: NewSequence) -> None:
        self.slots_R[new.row] = new.adapter_slot
        if new.adapter_slot >= 0:
            self.adapters.write(new.adapter_slot, new.request.content[0])

    def before(self, arrays: StepArrays) -> None:
        step, slots_S = self.adapters.step, self.slots_R[arrays.rows]
        step.active, step.count = bool(slots_S.max() >= 0), len(arrays.token_ids)
        if step.active:
            slots_T = np.repeat(slots_S, np.diff(arrays.query_starts))
            step.slots_T[: step.count].copy_(torch.from_numpy(slots_T))
            step.sampled_L = torch.from_numpy(slots_T[arrays.last]).to(step.slots_T.device)

    def replays(self, usual: Replays | None) -> Replays | None:
        return self.own_replays if self.adapters.step.active else usual

    def captured(self, active: bool, compute: Compute) -> Compute:
        """Return a computation of batches to capture: with adapters for all tokens if `active`,
        else with none."""
        step = self.adapters.step

        def computed(batch: Batch, last_L: Tensor | None = None, /) -> Tensor:
            before = step.active, step.count
            step.active, step.count = active, len(batch.token_ids_T)
            try:
                with step.sampling(step.slots_T if last_L is None else step.slots_T[last_L]):
                    return compute(batch, last_L)
            finally:
                step.active, step.count = before

        return computed

    def logits_of(self, new: NewSequence, logits: Logits) -> Logits:
        """Return what computes the logits of a sequence alone, within a step."""
        step, slot = self.adapters.step, new.adapter_slot

        def computed(hidden_ND: Tensor) -> Tensor:
            with step.sampling(step.slots_T.new_full((len(hidden_ND),), slot)):
                return logits(hidden_ND)

        return computed
