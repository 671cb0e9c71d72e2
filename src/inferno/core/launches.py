"""What an engine launches its steps on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inferno.constraints import Drafts, Masks
from inferno.core.types import Sampled, Step
from inferno.errors import RequestError


class Ticket(Protocol):
    """A step in flight."""

    def draw(self, masks: Masks) -> None:
        """Draw the step's tokens under masks. Called once, before the next launch."""
        ...

    def result(self) -> Sampled:
        """Wait for the results. Called once, in the order of the launches."""
        ...


class Runner(Protocol):
    """Computes steps: `runner.ModelRunner`, or a test's fake."""

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> Ticket:
        """Start the forward pass. The runner knows the tokens that earlier steps drew, even before
        their results are taken. `cut` is called before it with the step's drafts, and returns those
        to verify."""
        ...


class Closed:
    """The runner of an engine that was closed, or is asleep."""

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> Ticket:
        raise RequestError("the engine is closed", "Load another one.")
