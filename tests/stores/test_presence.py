"""Who follows the events of a cache knows what it has, whatever happens and whatever is dropped."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from inferno.builtin.lru import LRUPrefixCache
from inferno.catalog import load_catalog
from inferno.contracts import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    BlockStore,
    CacheEvent,
    Tier,
    TieredIndex,
)
from inferno.core.kvcache import CacheGroups
from inferno.core.types import Sequence as Sequence_
from inferno.request.requests import EngineStats, Request
from inferno.stores.presence import Presence
from inferno.testing import alike
from inferno.testing.block_store import StoreTests
from inferno.testing.cache_policy import BLOCK_SIZE, GROUPS, CacheMachine
from inferno.testing.store_machine import StoreMachine

Known = dict[tuple[Tier, int], set[bytes]]


@define(eq=False)
class Mirror:
    """A subscriber, and the publisher before it."""

    known: Known = field(factory=dict)
    """By tier and group, the keys that it knows of."""
    tokens: dict[bytes, tuple[bytes | None, tuple[int, ...]]] = field(factory=dict)
    """By key, the block's parent and tokens."""
    published: int = 0
    dropped: int = 0
    drops: int = 0
    """How many of the next batches are dropped."""
    events: list[CacheEvent] = field(factory=list)

    def publish(self, events: Sequence[CacheEvent]) -> bool:
        assert events, "an empty batch is published"
        if self.drops:
            self.drops -= 1
            self.dropped += 1
            return False
        self.published += 1
        self.events += events
        for event in events:
            self._follow(event)
        return True

    def _follow(self, event: CacheEvent) -> None:
        if isinstance(event, BlocksCleared):
            self.known.clear()
            return
        keys = self.known.setdefault((event.tier, event.group), set())
        if isinstance(event, BlocksRemoved):
            assert keys.issuperset(event.keys), "a block is removed that was not stored"
            keys.difference_update(event.keys)
            return
        assert len(set(event.keys)) == len(event.keys) > 0
        keys.update(event.keys)
        parent = event.parent
        for i, key in enumerate(event.keys if event.token_ids else ()):
            tokens = event.token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
            assert key == key_of(parent, tokens, event.salt), "these are another block's tokens"
            self.tokens[key] = parent, tokens
            parent = key
        if event.token_ids:
            assert len(event.token_ids) == len(event.keys) * BLOCK_SIZE

    def close(self) -> None:
        return None


def key_of(parent: bytes | None, tokens: Sequence[int], salt: str) -> bytes:
    root = parent or hashlib.blake2b(salt.encode(), digest_size=16).digest()
    return hashlib.blake2b(root + array("i", tokens).tobytes(), digest_size=16).digest()


def truth(groups: CacheGroups, blocks: dict[bytes, int], index: object) -> Known:
    """What memory and a store have."""
    known: Known = {}
    for key, block in blocks.items():
        put(known, "memory", key, groups.parts_of(block))
    if isinstance(index, TieredIndex):
        keys = dict[bytes, None]()
        index.watch(lambda key: keys.setdefault(key))
        for key in keys:
            for tier, bits in index.tiers(key).items():
                put(known, tier, key, bits)
    return known


def put(known: Known, tier: Tier, key: bytes, bits: int) -> None:
    for group in range(bits.bit_length()):
        if bits >> group & 1:
            known.setdefault((tier, group), set()).add(key)


class Followed(CacheMachine):
    """What `CacheMachine` does, with a subscriber."""

    def begin(self, *args: Any) -> None:
        super().begin(*args)
        self.mirror = Mirror()
        self.presence = Presence(self.mirror, BLOCK_SIZE, self.groups.parts_of)
        self.groups.watch(self.presence)
        self.store.watch(self.presence)

    @rule(count=st.integers(1, 2))
    def drop(self, count: int) -> None:
        self.mirror.drops = count

    @rule()
    def publish(self) -> None:
        self.presence.publish()

    @invariant()
    def the_subscriber_knows(self) -> None:
        draw = random.Random(len(self.output) + self.mirror.published)
        if draw.random() < 0.5:  # several changes may come between two batches
            return
        self.presence.publish()
        self.mirror.drops = 0
        self.presence.publish()
        index = getattr(self, "built", (None,))[0]
        prefix: Any = self.groups.prefix
        blocks = {key: block for block, key in prefix.cached.items()}
        expected = truth(self.groups, blocks, index)
        if isinstance(index, TieredIndex):
            index.watch(self.presence.moved)
        assert {place: keys for place, keys in self.mirror.known.items() if keys} == expected
        known = {key for keys in expected.values() for key in keys}
        assert self.presence._contents.keys() <= known | {
            key for key in self.presence._contents if self.presence.is_kept(key)
        }, "it remembers blocks that are nowhere"


class FollowedStore(Followed, StoreMachine):
    """The same with a store."""


def run(machine: Callable[[], CacheMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # whatever makes one will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    "groups",
    [n if n in ("all", "states") else pytest.param(n, marks=pytest.mark.slow) for n in GROUPS],
)
def test_a_subscriber_knows_what_memory_has(groups: str) -> None:
    run(lambda: Followed(LRUPrefixCache, GROUPS[groups]()), 40)


@alike
@pytest.mark.parametrize("tiers", ["disk", "host"])
@pytest.mark.parametrize("groups", GROUPS)
def test_a_subscriber_knows_what_every_tier_has(groups: str, tiers: str, tmp_path: Path) -> None:
    item = load_catalog().named(BlockStore, "offload").item
    folders = (tmp_path / str(i) for i in range(1 << 30))
    kind = type("Tests", (StoreTests,), {"keeps_files": tiers == "disk"})
    run(lambda: FollowedStore(item, GROUPS[groups], next(folders), kind, []), 20)


# --- what is told ---------------------------------------------------------------------------------


def sequence(tokens: Sequence[int]) -> Sequence_:
    result = Sequence_(Request(id="0", token_ids=tuple(tokens)), list(tokens), 0, 100)
    parent = None
    for i in range(0, len(tokens) - 1, BLOCK_SIZE):
        parent = key_of(parent, tokens[i : i + BLOCK_SIZE], "")
        result.keys.append(parent)
    return result


@pytest.fixture
def parts() -> dict[int, int]:
    """By block, the groups that have a part of it."""
    return {}


@pytest.fixture
def presence(parts: dict[int, int]) -> Presence:
    return Presence(Mirror(), BLOCK_SIZE, lambda block: parts.get(block, 0))


def told(presence: Presence) -> list[CacheEvent]:
    presence.publish()
    mirror = presence.publisher
    assert isinstance(mirror, Mirror)
    events, mirror.events = mirror.events, []
    return events


def test_a_prompts_blocks_are_one_event_after_their_parent(
    presence: Presence, parts: dict[int, int]
) -> None:
    one = sequence([1, 2, 3, 4, 5, 6])
    for block in (2, 0, 1):
        parts[block] = 1
        presence.name(block, one, block)
    assert told(presence) == [
        BlocksCleared(),
        BlocksStored(tuple(one.keys), None, (1, 2, 3, 4, 5, 6), "memory", 0),
    ]
    parts[1] = parts[2] = 0
    for block in (2, 1):
        presence.touch(block)
    assert told(presence) == [BlocksRemoved((one.keys[2], one.keys[1]), "memory", 0)]
    assert told(presence) == []


def test_when_the_memory_is_given_back_nothing_is_cached(
    presence: Presence, parts: dict[int, int]
) -> None:
    one = sequence([1, 2])
    parts[0] = 1
    presence.tiers_of = lambda key: {"disk": 1}
    presence.name(0, one, 0)
    presence.moved(one.keys[0])
    assert len(told(presence)) == 3
    presence.clear()
    parts[0] = 0
    assert told(presence) == [BlocksCleared()]
    presence.name(0, one, 0)
    parts[0] = 1
    assert told(presence) == [BlocksStored(tuple(one.keys), None, (1, 2), "memory", 0)]


def test_a_block_whose_tokens_become_known_is_told_again_or_removed(
    presence: Presence, parts: dict[int, int]
) -> None:
    """What a store had when it was opened is told without tokens."""
    one = sequence([1, 2, 3, 4])
    tiers = dict.fromkeys(one.keys, 1)
    presence.tiers_of = lambda key: {"disk": tiers.get(key, 0)}
    for key in one.keys:
        presence.moved(key)
    assert told(presence) == [BlocksCleared(), BlocksStored(tuple(one.keys), None, (), "disk", 0)]
    for block in (0, 1):
        presence.name(block, one, block)
    del tiers[one.keys[1]]  # before the next batch
    assert told(presence) == [
        BlocksRemoved((one.keys[1],), "disk", 0),
        BlocksStored((one.keys[0],), None, (1, 2), "disk", 0),
    ]


def test_what_comes_back_between_two_batches_is_not_told(
    presence: Presence, parts: dict[int, int]
) -> None:
    one, other = sequence([1, 2]), sequence([3, 4])
    parts[0] = 1
    presence.name(0, one, 0)
    told(presence)
    presence.touch(0)  # it is evicted, and computed again in another place
    presence.name(1, one, 0)
    presence.name(0, other, 0)
    parts[1] = 1
    assert told(presence) == [BlocksStored(tuple(other.keys), None, (3, 4), "memory", 0)]


def test_a_blocks_window_goes_before_the_block(presence: Presence, parts: dict[int, int]) -> None:
    one = sequence([1, 2])
    parts[0] = 0b11
    presence.name(0, one, 0)
    assert len(told(presence)) == 3
    parts[0] = 0b01
    presence.touch(0)
    assert told(presence) == [BlocksRemoved(tuple(one.keys), "memory", 1)]


def test_a_restored_block_is_told_again_once_its_tokens_are_known(
    presence: Presence, parts: dict[int, int]
) -> None:
    one = sequence([1, 2])
    presence.tiers_of = lambda key: {"disk": 1}
    presence.moved(one.keys[0])
    assert told(presence)[1:] == [BlocksStored(tuple(one.keys), None, (), "disk", 0)]
    parts[5] = 1
    presence.name(5, one, 0)
    known = [BlocksStored(tuple(one.keys), None, (1, 2), tier, 0) for tier in ("memory", "disk")]
    assert told(presence) == known


def test_after_a_dropped_batch_everything_is_told(
    presence: Presence, parts: dict[int, int]
) -> None:
    one = sequence([1, 2, 3, 4])
    parts |= {0: 1, 1: 1}
    presence.name(0, one, 0)
    mirror = presence.publisher
    assert isinstance(mirror, Mirror)
    mirror.drops = 2
    assert told(presence) == told(presence) == []
    presence.name(1, one, 1)
    assert told(presence) == [
        BlocksCleared(),
        BlocksStored(tuple(one.keys), None, (1, 2, 3, 4), "memory", 0),
    ]
    stats = EngineStats()
    presence.gauge(stats)
    assert (stats.event_batches, stats.dropped_event_batches) == (1, 2)
