"""Signs of life of the engine process, over a pipe: one byte per beat.

A thread of its own sends them, so that they go on during a long step. A process that is stopped, or
whose threads cannot run, sends none. Each byte also says whether the engine's loop has moved since
the beat before, and if not, whether that has lasted far longer than it should: so that a step that
never ends is noticed, and one that is merely long is not taken for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

BEAT_SECONDS = 1.0
STILL, MOVED, LATE = b"\0", b"\1", b"\2"
LATE_AFTER, LATE_FACTOR = 9.0, 20.0
"""A step is late once it exceeds both this number of seconds and this multiple of its expected
time. The next beat says so: within 10 s."""


class Heart:
    """The engine process's end: sends a beat every `seconds` until the process ends."""

    def __init__(self, pipe: int, seconds: float) -> None:
        self._pipe, self._seconds = pipe, seconds
        self._moved = True
        self._still = 0.0  # counted in beats: while this process is stopped, nothing is late
        self.expected: Callable[[], float | None] = lambda: None
        """Returns the seconds that what the engine is doing should take; None if nobody knows."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def moved(self) -> None:
        """Note that the engine's loop has come round."""
        self._moved = True

    def beat(self) -> bytes:
        """Return the next beat."""
        moved, self._moved = self._moved, False
        self._still = 0.0 if moved else self._still + self._seconds
        late = self._still >= LATE_AFTER and is_late(self._still, self.expected())
        return MOVED if moved else LATE if late else STILL

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: the worker notices it too
            while True:
                os.write(self._pipe, self.beat())
                time.sleep(self._seconds)


def is_late(seconds: float, expected: float | None) -> bool:
    """Whether what should take `expected` seconds has taken far too long."""
    return expected is not None and seconds >= max(LATE_AFTER, LATE_FACTOR * expected)
