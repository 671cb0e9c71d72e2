"""Which running requests take part in a step where several steps are in flight, one in each
pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from attrs import evolve, frozen

from inferno.contracts import Queue, Queued, QueueNeed, QueuePolicy


class Running(Queued, Protocol):
    """What a turn sees of a request that runs."""

    @property
    def num_unknown(self) -> int:
        """Tokens that steps in flight draw for it."""
        ...


T = TypeVar("T", bound=Running)


@frozen(eq=False)
class InTurns(Generic[T]):
    """A queue of whose running requests each step has a part (`contracts.Queue`). Those whose next
    token a step in flight draws wait for it; the others are shared out among as many steps as there
    are stages, so that each stage has one."""

    queue: Queue[T]
    stages: int

    def turn(self, running: Sequence[T], *, everyone: bool = False) -> Sequence[T]:
        known = [each for each in running if not each.num_unknown]
        share = -(-len(running) // self.stages)
        return self.queue.turn(known, everyone=everyone)[:share]

    def __len__(self) -> int:
        return len(self.queue)

    def push(self, each: T) -> None:
        self.queue.push(each)

    def first(self) -> T | None:
        return self.queue.first()

    def pop(self) -> None:
        self.queue.pop()

    def remove(self, each: T) -> None:
        self.queue.remove(each)

    def displaced(self, running: Sequence[T]) -> T | None:
        return self.queue.displaced(running)

    def victim(self, running: Iterable[T]) -> T:
        return self.queue.victim(running)

    def computed(self, parts: Iterable[tuple[T | None, int]], seconds: float) -> None:
        self.queue.computed(parts, seconds)


def in_turns(policy: QueuePolicy, stages: int) -> QueuePolicy:
    """Return a policy's queues for an engine of so many pipeline stages."""
    if stages == 1:
        return policy

    def build(need: QueueNeed) -> InTurns[Any]:
        return InTurns(policy.build(need), stages)

    return evolve(policy, build=build)
