"""The built-in queue: by priority, and first come, first served."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from attrs import define, field

from inferno.contracts import Queued, QueueNeed

T = TypeVar("T", bound=Queued)


@define(eq=False)
class FirstCome(Generic[T]):
    """See contracts.Queue."""

    need: QueueNeed
    _waiting: list[tuple[int, int, T]] = field(factory=list)
    """A heap of priority, arrival, request."""

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, each: T) -> None:
        heapq.heappush(self._waiting, (each.request.priority, each.arrival, each))

    def first(self) -> T | None:
        return self._waiting[0][2] if self._waiting else None

    def pop(self) -> None:
        heapq.heappop(self._waiting)

    def remove(self, each: T) -> None:
        self._waiting = [entry for entry in self._waiting if entry[2] is not each]
        heapq.heapify(self._waiting)

    def turn(self, running: Sequence[T], *, everyone: bool = False) -> Sequence[T]:
        return running

    def displaced(self, running: Sequence[T]) -> T | None:
        return None

    def victim(self, running: Iterable[T]) -> T:
        return max(running, key=lambda each: (each.request.priority, each.arrival))

    def computed(self, parts: Iterable[tuple[T | None, int]], seconds: float) -> None:
        pass
