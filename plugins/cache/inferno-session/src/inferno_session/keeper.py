"""Which sessions there are, what each has pinned, and which gives first when memory is needed."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count

from attrs import define, field

from inferno.contracts import (
    PrefixCache,
    SessionHint,
    SessionNeed,
    SessionView,
    StoreIndex,
    Unpinned,
)
from inferno_session.pinned import PinnedCache

MOST_SESSIONS = 10_000
MOST_KEYS = 1 << 18
"""Content keys of all sessions, and at least those of four times the cache: a session that has
never been in memory all at once may be in a store."""
Id = tuple[str, str]
"""Owner and name."""


def build(need: SessionNeed, prefix: PrefixCache) -> Keeper:
    """Return sessions around a prefix cache."""
    return Keeper(need, prefix)


@define(eq=False)
class Session:
    """What is kept of one conversation."""

    id: Id
    keys: list[bytes] = field(factory=list)
    """Of the blocks of its latest prompt and answer, each with all before it; of several at the
    same time, the longest's."""
    noted: float = 0.0
    """When a request of it ended last."""
    pinned: int = 0
    """How many of the leading ones are pinned in memory."""
    until: float = 0.0
    """When it ends."""

    def common(self, keys: Sequence[bytes]) -> int:
        """Return how many leading keys are the same. Keys are chains: after the first difference
        all differ."""
        low, high = 0, min(len(keys), len(self.keys))
        while low < high:
            middle = (low + high + 1) // 2
            if self.keys[middle - 1] == keys[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


@define(eq=False)
class Keeper:
    """The sessions of an engine, by owner. See `contracts.Sessions`.

    When pins must end because nothing else is idle, the owner with the most pinned blocks gives, of
    the session that it used longest ago the last block first: one owner's sessions, however many,
    do not cost another all of theirs.
    """

    need: SessionNeed
    prefix: PrefixCache
    store: StoreIndex | None = None
    cache: PinnedCache = field(init=False)
    num_pinned: int = field(default=0, init=False)
    _sessions: dict[Id, Session] = field(factory=dict, init=False)
    """Used longest ago first."""
    _pinning: dict[str, dict[Id, Session]] = field(factory=dict, init=False)
    """By owner, those that have pins, used longest ago first."""
    _pins: Counter[str] = field(factory=Counter, init=False)
    """How many blocks each owner has pinned."""
    _owned: Counter[str] = field(factory=Counter, init=False)
    """How many sessions each owner has."""
    _keys: Counter[str] = field(factory=Counter, init=False)
    """Content keys of each owner's sessions."""
    _num_keys: int = field(default=0, init=False)
    _ends: list[tuple[float, int, Session]] = field(factory=list, init=False)
    """A heap by time, with entries of sessions that were used or ended since."""
    _entries: count[int] = field(factory=count, init=False)

    def __attrs_post_init__(self) -> None:
        self.cache = PinnedCache(self.prefix, self._give)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def note(self, hint: SessionHint, keys: Sequence[bytes], age: float = 0.0) -> None:
        now = time.time()
        self._expire(now)
        keys = list(keys[: self.need.quota // self.need.block_size])
        if not keys:
            return
        id = (hint.owner, hint.name)
        session = self._sessions.pop(id, None)
        if session is None:
            session = Session(id)
            self._owned[hint.owner] += 1
        elif now - age < session.noted and len(keys) < len(session.keys):
            keys = session.keys
        self._sessions[id], session.noted = session, now
        self._repin(session, keys)
        session.until = now + (self.need.ttl if hint.ttl is None else hint.ttl)
        heapq.heappush(self._ends, (session.until, next(self._entries), session))
        if self.store is not None:
            self.store.pin(keys, _owner_in_store(id), session.until)
        self._make_room()

    def _repin(self, session: Session, keys: list[bytes]) -> None:
        """Pin a session's new keys, and let go what only its older ones were."""
        shared = min(session.common(keys), session.pinned)
        for key in keys[shared:]:
            self.cache.pin(key)
        for key in reversed(session.keys[shared : session.pinned]):
            self.cache.unpin(key)
        self._count_keys(session, len(keys) - len(session.keys))
        self._pinned(session, len(keys))
        session.keys = keys
        mine = self._pinning.setdefault(session.id[0], {})
        mine.pop(session.id, None)
        mine[session.id] = session

    def _pinned(self, session: Session, number: int) -> None:
        """Note how many of a session's keys are pinned."""
        more, owner = number - session.pinned, session.id[0]
        session.pinned = number
        if more:
            self.num_pinned += more
            self._pins[owner] += more
        if not number:
            mine = self._pinning.get(owner, {})
            mine.pop(session.id, None)
            if not mine:
                self._pinning.pop(owner, None)
                self._pins.pop(owner, None)

    def _give(self) -> None:
        """End the pin that is missed least."""
        self._expire(time.time())
        if not self._pinning:
            return
        owner = max(self._pinning, key=self._pins.__getitem__)
        session = next(iter(self._pinning[owner].values()))
        self.cache.unpin(session.keys[session.pinned - 1])
        self._pinned(session, session.pinned - 1)

    def _make_room(self) -> None:
        """Forget sessions until there are not too many."""
        most = max(MOST_KEYS, 4 * self.need.num_blocks)
        while len(self._sessions) > MOST_SESSIONS:
            self._forget_of(self._owned)
        while self._num_keys > most and len(self._sessions) > 1:
            self._forget_of(self._keys)

    def _forget_of(self, have: Counter[str]) -> None:
        """Forget the session that the owner who has the most used longest ago."""
        owner = max(have, key=have.__getitem__)
        self._forget(next(each for id, each in self._sessions.items() if id[0] == owner))

    def _count_keys(self, session: Session, more: int) -> None:
        self._num_keys += more
        self._keys[session.id[0]] += more
        if not self._keys[session.id[0]]:
            del self._keys[session.id[0]]

    def _expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            until, _, session = heapq.heappop(self._ends)
            if session.until == until and self._sessions.get(session.id) is session:
                self._forget(session)
        if len(self._ends) > 2 * len(self._sessions) + 64:
            self._ends = [
                (each.until, next(self._entries), each) for each in self._sessions.values()
            ]
            heapq.heapify(self._ends)

    def _forget(self, session: Session) -> None:
        for key in reversed(session.keys[: session.pinned]):
            self.cache.unpin(key)
        self._pinned(session, 0)
        self._count_keys(session, -len(session.keys))
        del self._sessions[session.id]
        self._owned -= Counter([session.id[0]])  # forgets an owner without any
        if self.store is not None:
            self.store.release(_owner_in_store(session.id))

    def views(self, owner: str, name: str | None, limit: int) -> list[SessionView]:
        now = time.time()
        self._expire(now)
        if name is not None:
            session = self._sessions.get((owner, name))
            return [] if session is None else [self._view(session, now)]
        recent = list[SessionView]()
        for id, session in reversed(self._sessions.items()):
            if len(recent) == limit:
                break
            if id[0] == owner:
                recent.append(self._view(session, now))
        return recent

    def _view(self, session: Session, now: float) -> SessionView:
        tiers, store = Counter[str](), self.store
        for key in session.keys:
            if self.cache.holds(key):
                tiers["memory"] += 1
            elif store is not None and (groups := store.groups_of(key)):
                tiers["host" if store.near(key) & groups == groups else "disk"] += 1
        size = self.need.block_size
        return SessionView(
            name=session.id[1],
            tokens=len(session.keys) * size,
            pinned=session.pinned * size,
            **{tier: tiers[tier] * size for tier in ("memory", "host", "disk")},
            ttl=session.until - now,
            quota=self.need.quota,
        )

    def end(self, owner: str, name: str) -> Unpinned | None:
        self._expire(time.time())
        session = self._sessions.get((owner, name))
        if session is None:
            return None
        self._forget(session)
        shared = max((other.common(session.keys) for other in self._sessions.values()), default=0)
        keys, blocks = list[bytes](), list[int]()
        for key in reversed(session.keys[shared:]):
            block = self.cache.idle(key)
            if block is not None:
                blocks.append(block)
            if block is not None or not self.cache.holds(key):
                keys.append(key)
        return Unpinned(tuple(keys), tuple(blocks))

    def check(self) -> None:
        """Check the invariants, for tests."""
        sessions = self._sessions.values()
        assert self.num_pinned == sum(each.pinned for each in sessions)
        assert self._num_keys == sum(len(each.keys) for each in sessions) == self._keys.total()
        assert {id for mine in self._pinning.values() for id in mine} == {
            each.id for each in sessions if each.pinned
        }
        assert self._pins == Counter(
            {o: sum(s.pinned for s in m.values()) for o, m in self._pinning.items()}
        )
        assert self._owned == Counter(each.id[0] for each in sessions)
        self.cache.check()


def _owner_in_store(id: Id) -> str:
    """Return the name of a session's pins, which no request has."""
    return f"session {id[0]} {id[1]}"
