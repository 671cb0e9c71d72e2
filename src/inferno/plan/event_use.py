"""Where events of the cache are published."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from inferno.contracts import EventGroup, EventNeed
from inferno.plan.cache_groups import CacheGroupPlan


@frozen(kw_only=True)
class EventUse:
    """The sink of events, and what it is asked for."""

    name: str
    distribution: str
    url: str
    replay: str | None = None
    """Where subscribers ask for what they have missed; None: nowhere."""
    topic: str | None = None
    """None: the sink's own."""

    def need(self, model: str, block_size: int, groups: Sequence[CacheGroupPlan] = ()) -> EventNeed:
        """Return what the publisher is built for."""
        return EventNeed(
            url=self.url,
            replay=self.replay,
            topic=self.topic,
            model=model,
            block_size=block_size,
            groups=tuple(EventGroup(group.kind, group.window) for group in groups),
        )
