"""The parent's end of the pipe on which the engine process gives signs of life (`heartbeat`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from inferno.process.heartbeat import BEAT_SECONDS, MOVED

UNRESPONSIVE_AFTER = 30
"""Beats missed before the engine counts as unresponsive: a plugin's native code may hold the
interpreter's lock for seconds."""
ENGINE_TIMEOUT = 120.0
"""Seconds of silence after which the process is replaced."""
STEP_FACTOR = 10
"""A single step may take this many timeouts: a chunk of a prompt on a slow CPU takes minutes."""


class Watchdog:
    """The parent's end: counts the beats that a process missed.

    Silence is counted in ticks of this process and not by a clock: while the whole machine or this
    process sleeps, none are missed. A beat is read before the next tick is counted, however late
    both come.
    """

    def __init__(
        self,
        pipe: int,
        *,
        timeout: float = ENGINE_TIMEOUT,
        beat: float = BEAT_SECONDS,
    ) -> None:
        """`pipe` is read, and closed by `close`."""
        self.timeout, self.beat = timeout, beat
        self.verdict: str | None = None
        """Why the process was killed."""
        self._silent = self._still = 0
        self._stopped = False
        self._pipe = pipe
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    @property
    def silence(self) -> float:
        """Seconds since the last beat."""
        return self._silent * self.beat

    @property
    def responsive(self) -> bool:
        return not self._stopped and self._silent < UNRESPONSIVE_AFTER

    async def watch(self, pid: int, kill: Callable[[], object]) -> None:
        """Watch a child process. Kill it when it has been silent for too long, and return. Without
        a timeout (0), never."""
        self._silent = self._still = 0
        while True:
            await asyncio.sleep(self.beat)
            self._silent += 1
            self._still += 1
            self._stopped = _is_stopped(pid)
            if self.timeout and self.silence >= self.timeout:
                self.verdict = f"gave no sign of life for {self.silence:g} s"
            elif self.timeout and self._still * self.beat >= STEP_FACTOR * self.timeout:
                self.verdict = f"was busy with one step for {self._still * self.beat:g} s"
            if self.verdict:
                kill()
                return

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)

    def _read(self) -> None:
        beats = os.read(self._pipe, 4096)
        if not beats:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._pipe)
            return
        self._silent = 0
        if MOVED in beats:
            self._still = 0


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this child process; False where the system does not say."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False
