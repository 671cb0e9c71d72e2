"""A queue that shares an engine among API keys."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import QueuePolicy


@hookimpl
def inferno_queue_policies() -> list[QueuePolicy]:
    return [QueuePolicy(name="fair", build="inferno_fair.queue:FairQueue", priority=10)]
