"""What is where: the parts of blocks in the cache's memory and in a store's tiers, as published."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attrs import define, field

from inferno.contracts import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    EventPublisher,
    Tier,
)
from inferno.request.requests import EngineStats, digests_within

if TYPE_CHECKING:
    from inferno.core.types import Sequence as Sequence_

TIERS: tuple[Tier, ...] = ("memory", "host", "disk")


class _Content(NamedTuple):
    """What is known of a block, besides its key."""

    parent: bytes | None
    token_ids: array[int]
    adapter: str
    salt: str
    images: str


class NoPresence:
    """Where nobody wants to know. What `Presence` says holds of its methods."""

    def name(self, block: int, sequence: Sequence_, index: int) -> None:
        return None

    def touch(self, block: int) -> None:
        return None

    def publish(self) -> None:
        return None

    def follow(self, watch: Callable[[Presence], None]) -> None:
        return None

    def clear(self) -> None:
        return None

    def gauge(self, stats: EngineStats) -> None:
        return None

    def close(self) -> None:
        return None


NO_PRESENCE = NoPresence()


@define(eq=False)
class Presence(NoPresence):
    """Publishes what has changed since it last did.

    It is told which blocks and keys may have changed, and asks for the truth when it publishes:
    what comes and goes between two calls is not told, and nothing depends on the order in which
    groups and stores change.
    """

    publisher: EventPublisher
    block_size: int
    parts_of: Callable[[int], int]
    """The groups that have a part of a block in memory, as a set of bits; 0 if it is not cached."""
    tiers_of: Callable[[bytes], Mapping[Tier, int]] = lambda key: {}
    """The same of a key, for a store's tiers."""
    is_kept: Callable[[bytes], int] = lambda key: 0
    """Whether a store has a block, or is about to have it."""
    _contents: dict[bytes, _Content] = field(factory=dict)
    _key_of: dict[int, bytes] = field(factory=dict)
    """The key under which a block was cached last."""
    _block_of: dict[bytes, int] = field(factory=dict)
    _touched: dict[int, None] = field(factory=dict)
    """Blocks of memory that may have changed; dicts as ordered sets."""
    _moved: dict[bytes, None] = field(factory=dict)
    """Keys that may have."""
    _told: dict[Tier, dict[bytes, int]] = field(factory=lambda: {tier: {} for tier in TIERS})
    """By tier, the groups of each key that subscribers know of."""
    _again: set[bytes] = field(factory=set)
    """Keys that they were told without tokens, which are known now."""
    _lost: bool = True
    """Whether they may have missed something, and must be told everything."""

    def name(self, block: int, sequence: Sequence_, index: int) -> None:
        """Note that a block was cached as the one at an index of a sequence."""
        key, keys, size = sequence.keys[index], sequence.keys, self.block_size
        if (before := self._key_of.get(block)) is not None:
            self._moved[before] = None
        self._key_of[block], self._block_of[key] = key, block
        self._touched[block] = None
        if key in self._contents:
            return
        request = sequence.request
        self._contents[key] = _Content(
            keys[index - 1] if index else None,
            array("i", sequence.token_ids[index * size : (index + 1) * size]),
            "" if request.adapter is None else request.adapter.name,
            request.cache_salt,
            digests_within(request.images, index * size, (index + 1) * size),
        )
        if any(key in told for told in self._told.values()):
            self._again.add(key)
            self._moved[key] = None

    def touch(self, block: int) -> None:
        """Note that what memory has of a block may have changed."""
        if block in self._key_of:
            self._touched[block] = None

    def moved(self, key: bytes) -> None:
        """Note that what a store has of a block may have changed."""
        self._moved[key] = None

    def publish(self) -> None:
        """Publish what has changed."""
        if not (self._touched or self._moved or self._lost):
            return
        keys = {self._key_of[b]: None for b in self._touched if b in self._key_of} | self._moved
        self._touched, self._moved = {}, {}
        removed, stored = list[_Change](), list[_Change]()
        for key in keys:
            self._compare(key, removed, stored)
        self._again.clear()
        events: list[CacheEvent]
        if self._lost:
            everything = [(t, k, bits) for t in TIERS for k, bits in self._told[t].items()]
            events = [BlocksCleared(), *self._stored(everything)]
        else:
            events = [*_removed(removed), *self._stored(stored)]
        if events:
            self._lost = not self.publisher.publish(events)
        for key in keys:
            if not (self.is_kept(key) or any(key in told for told in self._told.values())):
                self._contents.pop(key, None)

    def follow(self, watch: Callable[[Presence], None]) -> None:
        """Have a new store tell it what it has."""
        watch(self)

    def clear(self) -> None:
        """Publish that nothing is cached any more, neither in memory nor by a store."""
        self.tiers_of, self.is_kept = lambda key: {}, lambda key: 0
        self._contents, self._key_of, self._block_of = {}, {}, {}
        self._told = {tier: {} for tier in TIERS}
        self._touched, self._moved, self._again, self._lost = {}, {}, set(), True
        self.publish()

    def _compare(self, key: bytes, removed: list[_Change], stored: list[_Change]) -> None:
        """Append in which groups the tiers have lost and gained a block, and note it as told."""
        now = {"memory": self._in_memory(key), **self.tiers_of(key)}
        for tier in TIERS:
            told, bits = self._told[tier], now.get(tier, 0)
            before = told.get(key, 0)
            if lost := before & ~bits:
                removed.append((tier, key, lost))
            if gained := bits if key in self._again else bits & ~before:
                stored.append((tier, key, gained))
            if bits:
                told[key] = bits
            else:
                told.pop(key, None)

    def _in_memory(self, key: bytes) -> int:
        block = self._block_of.get(key)
        if block is None:
            return 0
        is_its = self._key_of.get(block) == key  # else the block has another content since
        bits = self.parts_of(block) if is_its else 0
        if not bits:
            del self._block_of[key]
            if is_its:
                del self._key_of[block]
        return bits

    def _stored(self, changes: Sequence[_Change]) -> Iterator[BlocksStored]:
        for (tier, group), keys in _by_place(changes).items():
            if unknown := tuple(key for key in keys if key not in self._contents):
                yield BlocksStored(unknown, None, (), tier, group)
            for run in self._runs(key for key in keys if key in self._contents):
                first = self._contents[run[0]]
                tokens = tuple(t for key in run for t in self._contents[key].token_ids)
                images = tuple(self._contents[key].images for key in run)
                with_what = first.adapter, first.salt, images if any(images) else ()
                yield BlocksStored(tuple(run), first.parent, tokens, tier, group, *with_what)

    def _runs(self, keys: Iterable[bytes]) -> Iterator[list[bytes]]:
        """Divide blocks into runs of continuations, each after the run that it continues."""
        run = list[bytes]()
        for key in self._ordered(dict.fromkeys(keys)):
            if run and self._contents[key].parent != run[-1]:
                yield run
                run = []
            run.append(key)
        if run:
            yield run

    def _ordered(self, keys: Collection[bytes]) -> Iterator[bytes]:
        """Put blocks into an order in which none comes before its parent."""
        done = set[bytes]()
        for key in keys:
            path = list[bytes]()
            at: bytes | None = key
            while at is not None and at in keys and at not in done:
                path.append(at)
                at = self._contents[at].parent
            done.update(path)
            yield from reversed(path)

    def gauge(self, stats: EngineStats) -> None:
        """Write how much was published."""
        stats.event_batches = self.publisher.published
        stats.dropped_event_batches = self.publisher.dropped

    def close(self) -> None:
        self.publisher.close()


_Change = tuple[Tier, bytes, int]
"""A tier, a block's key, and a set of groups."""


def _by_place(changes: Iterable[_Change]) -> dict[tuple[Tier, int], list[bytes]]:
    """Return the keys of changes, by tier and group."""
    keys = dict[tuple[Tier, int], list[bytes]]()
    for tier, key, groups in changes:
        for group in range(groups.bit_length()):
            if groups >> group & 1:
                keys.setdefault((tier, group), []).append(key)
    return keys


def _removed(changes: Iterable[_Change]) -> Iterator[BlocksRemoved]:
    for (tier, group), keys in _by_place(changes).items():
        yield BlocksRemoved(tuple(keys), tier, group)
