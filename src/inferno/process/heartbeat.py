"""Signs of life of the engine process, over a pipe: one byte per beat.

A thread of its own sends them, so that they go on during a long step. A process that is stopped, or
whose threads cannot run, sends none. Each byte also says whether the engine's loop has moved since
the beat before, so that a step that never ends is noticed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

BEAT_SECONDS = 1.0
STILL, MOVED = b"\0", b"\1"


class Heart:
    """The engine process's end: sends a beat every `seconds` until the process ends."""

    def __init__(self, pipe: int, seconds: float) -> None:
        self._pipe, self._seconds = pipe, seconds
        self._moved = True
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def moved(self) -> None:
        """Note that the engine's loop has come round."""
        self._moved = True

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: the worker notices it too
            while True:
                moved, self._moved = self._moved, False
                os.write(self._pipe, MOVED if moved else STILL)
                time.sleep(self._seconds)
