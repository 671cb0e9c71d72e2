"""Keepers of sessions: they pin the blocks that a conversation may come back to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.cache import PrefixCache
from inferno.contracts.stores import StoreIndex
from inferno.request.sessions import SessionHint, SessionView


class Unpinned(NamedTuple):
    """What a session leaves that was ended."""

    keys: tuple[bytes, ...]
    """Content keys that no other session has, and that no sequence uses."""
    block_ids: tuple[int, ...]
    """The idle blocks of the cache among them."""


class Sessions(Protocol):
    """The sessions of an engine. Used by the engine's thread only.

    Pins are soft. They reserve nothing: `num_idle` of the cache counts pinned blocks as any others,
    and `evict` takes them once no other block is idle. They change nothing of what `match` finds.
    """

    cache: PrefixCache
    """The one that it was built around, with pins. To the one inside, idle blocks that are pinned
    are not idle."""
    store: StoreIndex | None
    """Where the same blocks are pinned, if there is a store. The engine sets it."""
    num_sessions: int
    num_pinned: int
    """Blocks that are pinned, counted once for each session."""

    def note(self, hint: SessionHint, keys: Sequence[bytes], age: float = 0.0) -> None:
        """Let a session have the blocks of a request that has ended or lost its row, which are
        cached, and about to be idle. What only its older prompt had is not pinned any more. Of
        requests at the same time, the longest has the session: an agent asks something short
        while its conversation is answered. `age`: seconds since the request was queued."""
        ...

    def views(self, owner: str, name: str | None, limit: int) -> list[SessionView]:
        """Return what is kept for an owner's sessions, used last first; for one, if it is named."""
        ...

    def end(self, owner: str, name: str) -> Unpinned | None:
        """Forget a session and its pins. Returns what it leaves; None if there is none of that
        name."""
        ...


@frozen(kw_only=True)
class SessionNeed:
    """What sessions are built for."""

    block_size: int
    """Tokens of a block."""
    num_blocks: int
    """Of the cache."""
    ttl: float
    """Seconds that a session is kept after its last use, if its requests do not say."""
    quota: int
    """The most tokens that a session may have."""


@frozen(kw_only=True)
class SessionKeeper:
    """A way to keep sessions. The one with the highest priority is used, if there is any."""

    name: str
    build: Callable[[SessionNeed, PrefixCache], Sessions] = field(converter=lazy.function)
    """build(need, prefix) -> sessions around a policy's prefix cache. Imports no torch."""
    priority: int = 0
    api_version: int = 1
