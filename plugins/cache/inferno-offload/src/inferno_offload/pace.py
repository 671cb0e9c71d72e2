"""When threads that move bytes leave the cores to those of a step."""

from __future__ import annotations

import os
import threading
from time import monotonic, sleep, thread_time

import torch
from attrs import define, field

REST = 4.0
"""How long a thread rests after a burst, as a multiple of the processor time of the burst."""
LEAST_BURST = 1e-4
"""Seconds of processor time that are worth a rest."""
LONGEST = 0.01
"""Seconds of one rest, and what a burst that began before any step is worth."""
COMPUTES = 0.125
"""The share of a core that the engine's thread takes at least while it computes steps. While it
waits for a fetch it takes less than 0.02."""
SOON = 1e-3
"""Seconds in which two looks are one: one who waits may look twice at once."""
LASTS = 0.1
"""Seconds after which steps that were not heard of have ended."""


@define(eq=False)
class Pace:
    """Lets threads work in bursts of a fraction of a millisecond while steps compute, and at full
    speed else. Priorities are not enough: systems let a thread that was chosen, whatever its
    priority, run until their next tick (4 ms on most), and both threads of a step wait for it."""

    enabled: bool = False
    _rested: threading.local = field(factory=threading.local)
    """Of a thread, the processor time at its last rest."""
    _looked: float = 0.0
    _used: float = 0.0
    """Processor time of the engine's thread when it looked."""
    _until: float = 0.0
    """When steps have ended, if nothing is heard of them."""

    def look(self) -> None:
        """Note whether steps compute. The engine's thread calls it, between all steps."""
        now, used = monotonic(), thread_time()
        if now - self._looked < SOON:
            return
        computes = used - self._used > COMPUTES * (now - self._looked)
        self._until = now + LASTS if computes else 0.0
        self._looked, self._used = now, used

    def rest(self) -> None:
        """Sleep if steps compute, in proportion to the processor time since the last rest. A thread
        that moves bytes calls it after each MiB or so."""
        used = thread_time()
        burst = used - getattr(self._rested, "at", 0.0)
        if burst >= LEAST_BURST:
            self._rested.at = used
            if self.enabled and monotonic() < self._until:
                sleep(min(REST * burst, LONGEST))


def has_spare(count: int) -> bool:
    """Whether so many threads have cores that the threads of a step leave."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return (len(usable) or os.cpu_count() or 1) >= torch.get_num_threads() + count
