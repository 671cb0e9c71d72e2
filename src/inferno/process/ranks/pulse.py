"""Signs of life between machines: a message in each direction every `SECONDS`, and what their
absence means. A process that is stopped, and a network that is down, say nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from inferno.process.ranks.messages import BEAT
from inferno.process.ranks.wire import Message

SECONDS = 0.25
"""Between two beats."""
LOST = 30
"""Beats missed after which the first machine gives another one up: 7.5 s."""
PATIENT = 80
"""After which another machine gives the first one up, whose process holds Python's lock now and
then, while it loads: 20 s. It harms nobody if it is late."""


class Talks(Protocol):
    """A connection (`wire.Wire`)."""

    def send(self, kind: bytes, body: bytes = b"") -> None: ...

    def receive(self, seconds: float) -> Message | None: ...


def converse(
    wire: Talks,
    most: int,
    goes_on: Callable[[], bool],
    take: Callable[[bytes, bytes], None],
    tell: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Exchange signs of life with another machine while it `goes_on`. `take` is given its other
    messages; `tell` is called before each beat. Returns False if it has missed `most` of them, and
    raises EOFError if it has closed the connection.

    Beats are counted, not seconds: while this process sleeps or has no core, none are missed. What
    has arrived meanwhile is read first.
    """
    missed, heard, next_beat = 0, False, clock()
    while goes_on():
        if (message := wire.receive(max(0.0, next_beat - clock()))) is not None:
            heard = True
            if message[0] != BEAT:
                take(*message)
            continue
        if clock() < next_beat:
            continue
        tell()
        wire.send(BEAT)
        missed = 0 if heard else missed + 1
        if missed >= most:
            return False
        heard, next_beat = False, clock() + SECONDS
    return True
