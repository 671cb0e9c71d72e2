"""What an engine launches its steps on, and those that it has launched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from inferno.constraints import NO_MASKS, Drafts, Masks
from inferno.core.types import Sampled, Step
from inferno.errors import RequestError
from inferno.stores import NoStore, unless_failed

if TYPE_CHECKING:
    from inferno.core.home import Home


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


def needed(home: Home | None) -> Home:
    """Return the home of an engine that is to change. Raises an InfernoError if it cannot."""
    if home is None:
        raise RequestError("the engine is closed, or has no home", "Use `Engine.load`.")
    home.settle()
    return home


def save_last(store: NoStore, runner: Runner, home: Home | None) -> None:
    """Save what the store lacks, as steps that were dropped do, before the cache's memory goes."""
    with unless_failed():
        if home is not None:
            home.settle()
        if saves := store.take_last():
            ticket = runner.launch(Step((), saves=saves))
            ticket.draw(NO_MASKS)
            ticket.result()


@define(eq=False)
class InFlight:
    """The launched steps that are not committed, and how long they take, one after the other."""

    clock: Callable[[], float]
    _launched: deque[tuple[Step, Ticket, float]] = field(factory=deque)
    """With the times at which they were."""
    _ended: float = 0.0
    """When the last one that was committed had its results."""

    def __len__(self) -> int:
        return len(self._launched)

    def add(self, step: Step, ticket: Ticket, launched: float) -> None:
        self._launched.append((step, ticket, launched))

    def steps(self) -> list[Step]:
        """Return them, launched first to last. Another thread may call it."""
        return [step for step, _, _ in [*self._launched]]

    def result(self) -> tuple[Step, Sampled, float]:
        """Wait for the results of the first one. Returns it, these, and the seconds it took."""
        step, ticket, launched = self._launched.popleft()
        sampled = ticket.result()
        began, self._ended = max(launched, self._ended), self.clock()
        return step, sampled, self._ended - began

    def clear(self) -> None:
        self._launched.clear()
