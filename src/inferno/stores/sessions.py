"""What the scheduler tells the keeper of sessions, and what is asked of it from outside."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from attrs import define

from inferno.contracts import Sessions, StoreIndex
from inferno.request.requests import EngineStats
from inferno.request.sessions import SessionView

if TYPE_CHECKING:
    from inferno.core.kvcache import CacheGroups
    from inferno.core.types import Sequence


class _Store(Protocol):
    """What is needed of a store."""

    @property
    def index(self) -> StoreIndex | None: ...
    def drop(self, keys: Collection[bytes]) -> None: ...


class NoSessions:
    """Where nothing keeps sessions. What `KeptSessions` says holds of its answers."""

    def note(self, sequence: Sequence) -> None:
        return None

    def views(self, owner: str, name: str | None = None, limit: int = 1) -> list[SessionView]:
        return []

    def end(self, owner: str, name: str) -> list[SessionView]:
        return []

    def move(self, store: _Store) -> NoSessions:
        return self

    def gauge(self, stats: EngineStats) -> None:
        return None


NO_SESSIONS = NoSessions()


@define(eq=False)
class KeptSessions(NoSessions):
    """A keeper's sessions, with the cache and the store whose blocks they pin."""

    sessions: Sessions
    groups: CacheGroups
    store: _Store

    def __attrs_post_init__(self) -> None:
        self.sessions.store = self.store.index

    def note(self, sequence: Sequence) -> None:
        """Pin the blocks of a sequence that loses its row, once its prompt is computed: what was
        computed of one that is not continues nothing yet."""
        hint, count = sequence.request.session, sequence.num_inserted
        if hint is not None and sequence.num_computed >= len(sequence.request.token_ids):
            age = monotonic() - sequence.arrived
            self.sessions.note(hint, sequence.keys[:count], age)

    def views(self, owner: str, name: str | None = None, limit: int = 1) -> list[SessionView]:
        """Return what is kept for an owner's sessions, used last first; for one, if it is named."""
        return self.sessions.views(owner, name, limit)

    def end(self, owner: str, name: str) -> list[SessionView]:
        """Forget a session, and what the cache and the store have for it alone. Returns what was
        kept; nothing if there is none of that name."""
        views = self.sessions.views(owner, name, 1)
        if (left := self.sessions.end(owner, name)) is not None:
            self.groups.drop(list(left.block_ids))
            self.store.drop(set(left.keys))
        return views

    def move(self, store: _Store) -> KeptSessions:
        """Return the same sessions with another store."""
        return KeptSessions(self.sessions, self.groups, store)

    def gauge(self, stats: EngineStats) -> None:
        """Write how many sessions there are, and what is pinned for them."""
        stats.sessions = self.sessions.num_sessions
        stats.session_blocks = self.sessions.num_pinned
