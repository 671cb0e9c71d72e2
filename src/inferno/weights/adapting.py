"""Adapters: the slot of each token, and the adapters in slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from inferno.nn.batch import Batch
from inferno.request.requests import Request
from inferno.weights.adapters import Adapters

Logits = Callable[[Tensor], Tensor]
"""Maps hidden states to logits."""
Replays = TypeVar("Replays")
"""The captured steps of a model: `core.runner.replay.Replays`."""


class Admitted(Protocol):
    """A sequence that takes a row: `core.types.NewSequence`."""

    @property
    def row(self) -> int: ...
    @property
    def request(self) -> Request: ...
    @property
    def adapter_slot(self) -> int: ...


class Arrays(Protocol):
    """A step: `core.runner.StepArrays`."""

    token_ids: np.ndarray[Any, Any]
    query_starts: list[int]
    rows: np.ndarray[Any, Any]
    last: np.ndarray[Any, Any]


@define(eq=False)
class Adapting(Generic[Replays]):
    """Writes the slots of a step's tokens: a part of steps (`core.runner.StepPart`). Steps with
    adapters have captured shapes of their own, so that the others pay nothing."""

    adapters: Adapters
    num_rows: int
    own_replays: Replays | None = None
    slots_R: np.ndarray[tuple[int], np.dtype[np.int64]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots_R = np.full(self.num_rows, -1, np.int64)

    def admit(self, new: Admitted) -> None:
        self.slots_R[new.row] = new.adapter_slot
        if new.adapter_slot >= 0:
            self.adapters.write(new.adapter_slot, new.request.content[0])

    def before(self, arrays: Arrays) -> None:
        step, slots_S = self.adapters.step, self.slots_R[arrays.rows]
        step.active, step.count = bool(slots_S.max() >= 0), len(arrays.token_ids)
        if step.active:
            slots_T = np.repeat(slots_S, np.diff(arrays.query_starts))
            step.slots_T[: step.count].copy_(torch.from_numpy(slots_T))
            step.sampled_L = torch.from_numpy(slots_T[arrays.last]).to(step.slots_T.device)

    def refuses_replay(self, arrays: Arrays) -> bool:
        """Return False: it takes no hidden states."""
        return False

    def after(self, step: object, arrays: Arrays, hidden_TD: Tensor, results: object) -> None:
        """Do nothing."""

    def replays(self, usual: Replays | None) -> Replays | None:
        return self.own_replays if self.adapters.step.active else usual

    def captured(self, active: bool, compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
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

    def logits_of(self, new: Admitted, logits: Logits) -> Logits:
        """Return what computes the logits of a sequence alone, within a step."""
        step, slot = self.adapters.step, new.adapter_slot

        def computed(hidden_ND: Tensor) -> Tensor:
            with step.sampling(step.slots_T.new_full((len(hidden_ND),), slot)):
                return logits(hidden_ND)

        return computed
