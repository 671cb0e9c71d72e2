"""Events of the cache: which blocks came to a tier and left it, for routers outside the process.

A tier is `memory`, the cache itself, or one of a store's: `host`, `disk`. What a tier has of a
block it has in each cache group apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from attrs import field, frozen

from inferno.contracts import lazy

Tier = Literal["memory", "host", "disk"]


class BlocksStored(NamedTuple):
    """A tier now has these blocks, each the continuation of the one before."""

    keys: tuple[bytes, ...]
    """Their content keys (`PrefixCache`)."""
    parent: bytes | None
    """The key of the block before the first; None: a prompt begins with it."""
    token_ids: tuple[int, ...]
    """Of all these blocks. Empty for blocks that a store had when the engine started, until a
    request has them: then the keys are in no order, and `parent` is None."""
    tier: Tier
    group: int
    """The cache group whose part of the blocks this is."""
    adapter: str = ""
    """Name of the adapter that they were computed with."""
    salt: str = ""
    """The requests' `cache_salt`."""
    images: tuple[str, ...] = ()
    """For each block, the digests of the images that its tokens are of, in hexadecimal and joined
    by commas; empty if no block has any."""


class BlocksRemoved(NamedTuple):
    """A tier has these blocks' parts no more."""

    keys: tuple[bytes, ...]
    tier: Tier
    group: int


class BlocksCleared(NamedTuple):
    """No tier has any block. The first event of an engine, and the first after some were lost."""


CacheEvent = BlocksStored | BlocksRemoved | BlocksCleared


class EventPublisher(Protocol):
    """Publishes events. Its methods are called by the engine's thread, and return without waiting
    for files or networks."""

    @property
    def published(self) -> int:
        """How many batches were accepted."""
        ...

    @property
    def dropped(self) -> int:
        """How many were not."""
        ...

    def publish(self, events: Sequence[CacheEvent]) -> bool:
        """Accept what one step has changed, in order. False if it is dropped, because too much
        waits already: the next batch then begins with `BlocksCleared` and tells everything."""
        ...

    def close(self) -> None:
        """Publish what waits, for a moment at most."""
        ...


class EventGroup(NamedTuple):
    """A cache group, as events name it by its index."""

    kind: Literal["full", "window", "chunk", "state"]
    window: int | None
    """In tokens, the current one included; or a chunk's."""


@frozen(kw_only=True)
class EventNeed:
    """What a publisher is built for."""

    url: str
    """Where to publish: a scheme, `://`, and what that scheme says."""
    replay: str | None = None
    """Where subscribers may ask for events that they have missed; None: nowhere."""
    topic: str | None = None
    """What subscribers choose by; None: the publisher's own."""
    model: str
    """The name under which the model is served."""
    block_size: int
    """Tokens of a block."""
    groups: tuple[EventGroup, ...]
    """By the index that events have."""
    engine: int = 0
    """Which of several engines that share a server publishes: its data-parallel rank."""


@frozen(kw_only=True)
class EventSink:
    """A way to publish events of the cache. The one with the highest priority that does not refuse
    is used."""

    name: str
    build: Callable[[EventNeed], EventPublisher] = field(converter=lazy.function)
    """build(need) -> the publisher. Raises OptionError if it cannot publish there."""
    refuses: Callable[[EventNeed], str | None] = lambda need: None
    """refuses(need) -> why it cannot publish there, or None: by the URL's scheme. `groups` is empty
    then. Imports no torch."""
    priority: int = 0
    api_version: int = 1
