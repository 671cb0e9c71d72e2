"""What publishers have in common: batches wait, in order and numbered, for a thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attrs import define, field

from inferno.contracts import CacheEvent

MOST_WAITING = 4096
"""Batches that may wait. More are dropped: an engine never waits for those who listen."""
CLOSING_SECONDS = 2.0


class Batch(NamedTuple):
    number: int
    """From 0, without gaps but for dropped ones."""
    at: float
    """`time.time` of its step."""
    events: tuple[CacheEvent, ...]


@define(eq=False)
class Waiting:
    """Batches on their way from the engine's thread to another. `descriptor` is readable while
    there are some, and at the end."""

    most: int = MOST_WAITING
    published: int = 0
    dropped: int = 0
    closed: bool = False
    descriptor: int = field(init=False)
    _signal: int = field(init=False)
    _batches: deque[Batch] = field(factory=deque)

    def __attrs_post_init__(self) -> None:
        self.descriptor, self._signal = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._signal, False)

    def put(self, events: Sequence[CacheEvent]) -> bool:
        """Append a batch. False if it is dropped; its number is left out, so that it is missed."""
        number = self.published + self.dropped
        if self.closed or len(self._batches) >= self.most:
            self.dropped += 1
            return False
        self.published += 1
        self._batches.append(Batch(number, time.time(), tuple(events)))
        self._wake()
        return True

    def take(self) -> list[Batch]:
        """Return the batches that wait, first to last, and forget them."""
        try:
            while os.read(self.descriptor, 4096):
                pass
        except BlockingIOError:
            pass
        return [self._batches.popleft() for _ in range(len(self._batches))]

    def close(self) -> None:
        """Wake the thread for the last time."""
        self.closed = True
        self._wake()

    def free(self) -> None:
        """Close the descriptors, once the thread has ended."""
        os.close(self.descriptor)
        os.close(self._signal)

    def _wake(self) -> None:
        try:
            os.write(self._signal, b"\0")
        except BlockingIOError:  # it is readable
            pass


class ThreadedPublisher:
    """An `EventPublisher` whose batches are published by a thread that runs `serve`."""

    def __init__(self, waiting: Waiting, serve: Callable[[], None], name: str) -> None:
        self._waiting = waiting
        self._thread = threading.Thread(target=serve, name=name, daemon=True)
        self._thread.start()

    @property
    def published(self) -> int:
        return self._waiting.published

    @property
    def dropped(self) -> int:
        return self._waiting.dropped

    def publish(self, events: Sequence[CacheEvent]) -> bool:
        return self._waiting.put(events)

    def close(self) -> None:
        if self._waiting.closed:
            return
        self._waiting.close()
        self._thread.join(CLOSING_SECONDS)
        if not self._thread.is_alive():  # else it still reads them
            self._waiting.free()
