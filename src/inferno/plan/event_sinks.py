"""The choice of a sink for events of the cache."""

from __future__ import annotations

from attrs import evolve

from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.errors import OptionError
from inferno.plan.decided import Decided
from inferno.plan.event_use import EventUse
from inferno.plan.options import Options


def choose_sink(catalog: Catalog, options: Options, policy: str) -> Decided[EventUse] | None:
    """Return the sink that the options ask for; None if they ask for none. Raises OptionError,
    UnsupportedError."""
    url = options.kv_events
    if url is None:
        if options.kv_events_replay is not None or options.kv_events_topic is not None:
            raise OptionError(
                "--kv-events-replay and --kv-events-topic are of no use without --kv-events",
                "Say where events are published: --kv-events tcp://*:5557.",
            )
        return None
    if policy == "none":
        raise OptionError(
            "--kv-events tells of the prefix cache, and the cache policy is none",
            "Leave out --cache-policy none.",
        )
    use = EventUse(
        name="",
        distribution="",
        url=url,
        replay=options.kv_events_replay,
        topic=options.kv_events_topic,
    )
    need = use.need("", 1)
    choice = choose(
        catalog.of("inferno_event_sinks"),
        f"events of the cache to {url}",
        lambda offer: offer.item.refuses(need),
    )
    use = evolve(use, name=choice.item.name, distribution=choice.offer.distribution)
    return Decided(use, (("event sink", choice.offer),), choice.refusals)
