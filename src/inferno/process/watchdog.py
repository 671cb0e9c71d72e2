"""The parent's end of the pipe on which the engine process gives signs of life (`heartbeat`)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from inferno.process.heartbeat import BEAT_SECONDS, LATE, LATE_FACTOR, MOVED

log = logging.getLogger("inferno.process")

UNRESPONSIVE_AFTER = 9
"""Beats missed before the engine counts as unresponsive: a plugin's native code may hold the
interpreter's lock for seconds."""
LOST_AFTER = 9
"""Beats after which the requests of an engine that is not responsive are given up: their clients
learn it within 10 s, and can ask elsewhere."""
_ASK_EVERY = 3
"""Beats of a loop that moves and sends nothing, after which it is asked for a message."""
ENGINE_TIMEOUT = 45.0
"""Seconds of silence after which the process is replaced."""
STEP_FACTOR = 25
"""A step whose usual time is not known may take this many timeouts: a prompt on a slow CPU takes
minutes. One that is late (`heartbeat.is_late`) may take one."""


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
        self.stalled = False
        """Whether the engine's step takes far longer than it should."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called when its requests are to be given up; the engine may still go on."""
        self.ask: Callable[[], object] = lambda: None
        """Asks the engine for a message."""
        self._silent = self._still = self._unheard = 0
        self._stopped = self._lost = False
        self._pipe = pipe
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    @property
    def silence(self) -> float:
        """Seconds since the last beat."""
        return self._silent * self.beat

    @property
    def responsive(self) -> bool:
        quiet = self._stopped or self.stalled
        return not quiet and max(self._silent, self._unheard) < UNRESPONSIVE_AFTER

    @property
    def busy_for(self) -> float:
        """Seconds since the engine's loop came round."""
        return self._still * self.beat

    def heard(self) -> None:
        """Note that a message of the engine has come."""
        self._unheard = 0

    async def watch(self, pid: int, kill: Callable[[], object]) -> None:
        """Watch a child process. Kill it when it has been silent for too long, and return. Without
        a timeout (0), never."""
        self._silent = self._still = self._unheard = 0
        told = ""
        while True:
            await asyncio.sleep(self.beat)
            self._silent += 1
            self._still += 1
            self._stopped = _is_stopped(pid)
            if (trouble := self._trouble()) != told:
                told = trouble
                self._tell(pid, trouble)
            self._give_up()
            if self.timeout and self.silence >= self.timeout:
                self.verdict = f"gave no sign of life for {self.silence:g} s"
            elif self.timeout and self._unheard * self.beat >= self.timeout:
                self.verdict = f"sent no message for {self._unheard * self.beat:g} s"
            elif self.timeout and self.stalled and self.busy_for >= self.timeout:
                self.verdict = (
                    f"was busy with one step for {self.busy_for:g} s, over {LATE_FACTOR:g} times "
                    "what it should take"
                )
            elif self.timeout and self.busy_for >= STEP_FACTOR * self.timeout:
                self.verdict = f"was busy with one step for {self.busy_for:g} s"
            if self.verdict:
                kill()
                return

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)

    def _give_up(self) -> None:
        """Say that the requests are lost, once, if the engine has been in trouble for so long."""
        quiet = max(self._silent, self._still, self._unheard)
        lost, self._lost = self._lost, not self.responsive and quiet >= LOST_AFTER
        if self._lost and not lost:
            self.on_lost()

    def _trouble(self) -> str:
        """Why the engine takes no requests; nothing if it does."""
        if self.stalled:
            return "stalled"
        if self._stopped:
            return "stopped"
        if self._unheard >= UNRESPONSIVE_AFTER:
            return "unheard"
        return "" if self.responsive else "silent"

    def _tell(self, pid: int, trouble: str) -> None:
        """Log that the engine is in trouble, or goes on."""
        if not trouble:
            log.warning("engine process %d goes on", pid)
            return
        what, until = {
            "stalled": (
                f"is stalled: one step has taken {self.busy_for:g} s, over {LATE_FACTOR:g} times "
                "what it should",
                "the step ends",
            ),
            "stopped": ("was stopped by a signal", "it is continued"),
            "unheard": (
                f"gives signs of life, and has sent no message for {self._unheard * self.beat:g} s",
                "one comes",
            ),
            "silent": (f"has given no sign of life for {self.silence:g} s", "it gives one"),
        }[trouble]
        replaced = f", and is replaced after {self.timeout:g} s" if self.timeout else ""
        log.error(
            "engine process %d %s; it takes no requests until %s%s", pid, what, until, replaced
        )

    def _read(self) -> None:
        beats = os.read(self._pipe, 4096)
        if not beats:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._pipe)
            return
        self._silent = 0
        self.stalled = beats.endswith(LATE)
        if MOVED in beats:
            self._still = 0
            self._unheard += 1  # not one for each: this process may have been stopped meanwhile
            if self._unheard % _ASK_EVERY == 0:
                self.ask()
        if self.stalled:  # at once: the next look is up to a second later
            self._give_up()


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this child process; False where the system does not say."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False
