"""Messages between threads, with a descriptor to wait on, and those that wait in a socket."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

import zmq
from attrs import define, field

T = TypeVar("T")
MOST_AT_ONCE = 64
"""Messages that are read before what is to be sent has its turn."""


@define(eq=False)
class Mailbox(Generic[T]):
    """One thread puts, another takes; `descriptor` is readable while there is something."""

    descriptor: int = field(init=False)
    _signal: int = field(init=False)
    _items: deque[T] = field(factory=deque, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self.descriptor, self._signal = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._signal, False)

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: T) -> None:
        """Put something. It is lost if the mailbox is closed."""
        with self._lock:
            if self._signal < 0:
                return
            self._items.append(item)
            if len(self._items) == 1:
                os.write(self._signal, b"\0")

    def take(self) -> list[T]:
        """Take all there is."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
            if self._signal >= 0:
                with suppress(BlockingIOError):
                    os.read(self.descriptor, 64)
            return items

    def close(self) -> None:
        with self._lock:
            if self._signal >= 0:
                os.close(self._signal)
                os.close(self.descriptor)
            self._signal = -1
            self._items.clear()


def waiting(socket: zmq.Socket[bytes]) -> Iterator[list[zmq.Frame]]:
    """Yield the messages that wait in a socket, each with its frames."""
    for _ in range(MOST_AT_ONCE):
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        yield frames
