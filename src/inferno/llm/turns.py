"""Threads that share an engine use it in turns; a child of fork is refused."""

from __future__ import annotations

import os
from threading import RLock
from types import TracebackType

from attrs import define, field

from inferno.errors import InfernoError


@define(eq=False)
class Turns:
    """A lock which threads that wait get before the one that has just released it: a lock alone is
    taken again at once by a thread that computes one step after the other."""

    _pid: int = field(init=False, factory=os.getpid)
    _next: RLock = field(init=False, factory=RLock)
    _lock: RLock = field(init=False, factory=RLock)

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made it."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise InfernoError in a child of fork: it has none of the threads that compute."""
        if self.forked:
            raise InfernoError(
                "this process was forked after the model was loaded, and has none of the threads "
                "that compute",
                "Start the process with spawn (multiprocessing.get_context('spawn')) and load the "
                "model there, or fork before any model is loaded.",
            )

    def __enter__(self) -> None:
        self.check()
        with self._next:
            self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
