"""Queues of requests, and the policies that offer them: which request is admitted next, and which
of those that run take part in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.request.requests import Request


class Queued(Protocol):
    """A request that waits or runs, as a queue sees it. It only reads."""

    @property
    def request(self) -> Request:
        """What was asked, with its `priority` and `tenant`."""
        ...

    @property
    def arrival(self) -> int:
        """Order of arrival, kept when the request loses its row and waits again."""
        ...

    @property
    def num_computed(self) -> int:
        """Leading tokens that are computed."""
        ...


T = TypeVar("T", bound=Queued)


class Queue(Protocol[T]):
    """The waiting requests of an engine, and the order among all. Used by the engine's thread only.

    It orders; the kernel decides what fits. Answers are the same in any order, only their times are
    not.
    """

    def __len__(self) -> int:
        """How many wait."""
        ...

    def push(self, each: T) -> None:
        """Let a request wait: a new one, or one that has lost its row."""
        ...

    def first(self) -> T | None:
        """Return the one that is admitted next, which stays; None if none is to be in this step."""
        ...

    def pop(self) -> None:
        """Remove the one that `first` returned. It now runs."""
        ...

    def remove(self, each: T) -> None:
        """Remove a request; one that does not wait here is ignored."""
        ...

    def turn(self, running: Sequence[T], *, everyone: bool = False) -> Sequence[T]:
        """Return those of the `running` requests, first admitted first, that take part in the step
        that is now planned, in the order in which they are given its tokens. `everyone`: all of
        them, because without the others the step would be empty."""
        ...

    def displaced(self, running: Sequence[T]) -> T | None:
        """Return a running request that is to wait again, so that the first one that waits can
        run: there is no row, or no memory, for it. None: it waits until others end."""
        ...

    def victim(self, running: Iterable[T]) -> T:
        """Return the running request that is to wait again when those that run need more memory
        than there is."""
        ...

    def computed(self, parts: Iterable[tuple[T | None, int]], seconds: float) -> None:
        """Take note of a step's requests with their numbers of tokens, and of the seconds that it
        took. None: a request that has ended or lost its row meanwhile."""
        ...


@frozen(kw_only=True)
class QueueNeed:
    """What a queue is built for."""

    max_num_seqs: int
    """The most requests that run at once."""
    seconds: Callable[[int, float, bool], float | None]
    """seconds(tokens, pairs, alone) -> what a step of these numbers of tokens, and of pairs of one
    and another that it attends to, should take. `alone`: it has one token of each request. None:
    that is not known yet."""


QueueBuild = Callable[[QueueNeed], Queue[Any]]
"""Returns an empty queue."""


@frozen(kw_only=True)
class QueuePolicy:
    """An order of requests. The one with the highest priority is the default."""

    name: str
    build: QueueBuild = field(converter=lazy.function)
    """build(need) -> an empty queue. Imports no torch."""
    priority: int = 0
    api_version: int = 1
