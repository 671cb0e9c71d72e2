"""The protocol of a part of a step.

Suffixes: T tokens of the step, drafts included; D hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import define, field
from torch import Tensor

from inferno.core.runner.tables import StepArrays
from inferno.core.types import NewSequence, Step
from inferno.request.requests import Logprobs

if TYPE_CHECKING:
    from inferno.core.runner.replay import Replays


@define(eq=False)
class PartResults:
    """What a step's parts give beside its tokens: see `Sampled`."""

    prompt_logprobs: dict[int, tuple[Logprobs | None, ...]] = field(factory=dict)
    embeddings: dict[int, tuple[float, ...]] = field(factory=dict)
    broken: dict[str, int] = field(factory=dict)
    """By request, the position of a token for which the model's output is not finite."""


class StepPart(Protocol):
    """What some rows of a step need beside the model. Subclasses override what they need.

    A part keeps what it needs by row, until the row is admitted again: sequences end and are
    preempted without notice. A step calls `admit`, `before`, `refuses_replay`, and if it is
    computed `after`.
    """

    def admit(self, new: NewSequence) -> None:
        """Note that a sequence takes a row: a new one, or one that was preempted."""
        return None

    def before(self, arrays: StepArrays) -> None:
        """Write what layers read in this step, into tensors that stay where they are: a replayed
        step reads them at their addresses. It may read more tokens than the step has, whose values
        must be valid, of whatever step. On a device, write in the order of its stream: an earlier
        step may still be running."""
        return None

    def refuses_replay(self, arrays: StepArrays) -> bool:
        """Return whether the step must be computed, because `after` needs its hidden states."""
        return False

    def replays(self, usual: Replays | None) -> Replays | None:
        """Return the captured steps that this step may be one of: the model's usual ones, or those
        with what the part adds."""
        return usual

    def after(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, results: PartResults
    ) -> None:
        """Take the final hidden states of a computed step, and add to its results."""
        return None
