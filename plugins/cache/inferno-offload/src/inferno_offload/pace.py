"""When the store's threads, which move bytes, leave the cores to the threads of a step."""

from __future__ import annotations

import os
import threading
from time import monotonic, sleep, thread_time

import torch
from attrs import define, field

REST = 4.0
"""How long a thread rests after a burst, as a multiple of the processor time of the burst."""
LEAST_BURST = 1e-4
"""Seconds of processor time in a burst, below which no rest follows yet."""
LONGEST = 0.01
"""Most seconds of one rest: a burst that began before any step may have been long."""
COMPUTES = 0.125
"""The least share of a core that the engine's thread uses between two looks if it computes steps.
While it waits for a fetch it uses less than 0.02."""
SOON = 1e-3
"""Least seconds between two looks. One that comes sooner is ignored: a thread that waits may look
twice in a row, which says nothing of its steps."""
LASTS = 0.1
"""Seconds after a look that found steps until they count as ended, unless another look finds
more."""


@define(eq=False)
class Pace:
    """Lets threads work in bursts of a fraction of a millisecond while steps compute, and at full
    speed otherwise. Priorities are not enough: a system lets a thread that it has chosen, whatever
    its priority, run until the next tick (4 ms on most), and all threads of a step wait for it."""

    enabled: bool = False
    """Whether threads rest at all: steps need all cores."""
    _rested: threading.local = field(factory=threading.local)
    """`at`: of each thread, its processor time at the end of its last burst."""
    _looked: float = 0.0
    """Time of the last look."""
    _used: float = 0.0
    """Processor time of the engine's thread at the last look."""
    _until: float = 0.0
    """Time until which steps count as computing; 0: they do not."""

    def look(self) -> None:
        """Note whether steps compute. The engine's thread calls it, between all steps."""
        now, used = monotonic(), thread_time()
        if now - self._looked < SOON:
            return
        computes = used - self._used > COMPUTES * (now - self._looked)
        self._until = now + LASTS if computes else 0.0
        self._looked, self._used = now, used

    def rest(self) -> None:
        """End a burst, and sleep in proportion to its processor time if steps compute. A thread
        that moves bytes calls it after each MiB or so."""
        used = thread_time()
        burst = used - getattr(self._rested, "at", 0.0)
        if burst >= LEAST_BURST:
            self._rested.at = used
            if self.enabled and monotonic() < self._until:
                sleep(min(REST * burst, LONGEST))


def has_spare(count: int) -> bool:
    """Whether there are cores for `count` threads besides those of a step."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return (len(usable) or os.cpu_count() or 1) >= torch.get_num_threads() + count
