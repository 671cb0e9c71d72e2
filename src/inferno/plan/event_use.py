"""Where events of the cache are published."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from inferno.contracts import EventGroup, EventNeed
from inferno.plan.addresses import address_of
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
    engine: int = 0
    """Which of several engines has this plan. `url` and `replay` are the first one's."""

    def need(self, model: str, block_size: int, groups: Sequence[CacheGroupPlan] = ()) -> EventNeed:
        """Return what the publisher is built for."""
        return EventNeed(
            url=address_of(self.url, self.engine),
            replay=None if self.replay is None else address_of(self.replay, self.engine),
            engine=self.engine,
            topic=self.topic,
            model=model,
            block_size=block_size,
            groups=tuple(EventGroup(group.kind, group.window) for group in groups),
        )
