"""Binds a rank to its cores, and so what it allocates to their memory."""

from __future__ import annotations

import os
from collections.abc import Callable

from inferno.plan import Plan


def bind(plan: Plan, rank: int) -> Callable[[], None]:
    """Bind this thread, and those that it will start, to the cores of a rank, or of an engine
    without ranks, if the plan says so. Returns what undoes that."""
    cpus = plan.ranks.cores[rank] if plan.ranks is not None and plan.ranks.cores else plan.cores
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return lambda: None
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    return lambda: os.sched_setaffinity(0, before)
