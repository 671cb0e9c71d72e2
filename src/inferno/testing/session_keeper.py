"""Tests of every keeper of sessions: pins are soft, and change which blocks leave, never what is
found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from attrs import define
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from inferno.builtin.lru import LRUPrefixCache
from inferno.catalog import Catalog
from inferno.contracts import PrefixCache, SessionHint, SessionKeeper, SessionNeed, Sessions
from inferno.core.kvcache import CacheGroup
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores import NoStore
from inferno.stores.sessions import KeptSessions
from inferno.testing.alike import alike
from inferno.testing.cache_policy import BLOCK_SIZE, GROUPS, NUM_BLOCKS, CacheMachine, Watched
from inferno.testing.installed import Installed

KEYS = [bytes([i]) * 16 for i in range(8)]
OTHER = [*KEYS[:2], *(bytes([100 + i]) * 16 for i in range(6))]
"""Another conversation with the same beginning."""
QUOTA, TTL = 8 * BLOCK_SIZE, 60.0
TTLS = (None, 5.0, 1e6)


class SessionKeeperTests(Installed):
    """Set `keeper` to its registered name, and `clock` to what its time is read from: the path of a
    function that a test may replace, as `"time.time"`."""

    keeper: ClassVar[str]
    clock: ClassVar[str] = "time.time"
    max_examples: ClassVar[int] = 60

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> SessionKeeper:
        return catalog.named(SessionKeeper, cls.keeper).item

    @pytest.fixture
    def filled(self, item: SessionKeeper) -> Filled:
        return Filled(item)

    @alike
    @pytest.mark.parametrize("groups", GROUPS)
    def test_pins_change_no_answer_and_block_nothing_whatever_happens(
        self, item: SessionKeeper, groups: str
    ) -> None:
        clock = _Clock()
        with clock.instead_of(self.clock):
            run_state_machine_as_test(
                lambda: SessionMachine(item, GROUPS[groups](), clock),  # type: ignore[arg-type]  # whatever makes one will do
                settings=settings(
                    max_examples=self.max_examples,
                    stateful_step_count=30,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )

    def test_of_prompts_at_the_same_time_the_longest_has_the_session(self, filled: Filled) -> None:
        clock = _Clock()
        with clock.instead_of(self.clock):
            filled.cache(KEYS[:5])
            filled.cache(OTHER[:4])
            sessions, hint = filled.sessions, SessionHint("a")

            def pinned(keys: Sequence[bytes], age: float) -> int:
                clock.now += 10
                sessions.note(hint, keys, age)
                [view] = sessions.views("", "a", 1)
                return view.pinned // BLOCK_SIZE

            assert pinned(OTHER[:4], 1) == 4
            assert pinned(KEYS[:5], 25) == 5, "it was queued before, and is longer"
            assert pinned(OTHER[:4], 15) == 5, "it was queued before that ended, and is shorter"
            assert sessions.num_pinned == 5
            assert pinned(OTHER[:4], 5) == 4, "a newer one"
            assert pinned(KEYS[:2], 0) == 2, "the same"

    def test_without_a_session_it_is_the_cache_inside(self, filled: Filled) -> None:
        filled.cache(KEYS[:3])
        cache = filled.sessions.cache
        assert cache.match(KEYS) == [0, 1, 2] and cache.num_idle == 3
        assert cache.evict(2) == [2, 1] and cache.match(KEYS) == [0]
        assert cache.clear() == [0] and filled.sessions.num_sessions == 0

    def test_pinned_blocks_leave_last_and_leave(self, filled: Filled) -> None:
        filled.cache(KEYS[:3], "a")
        filled.cache(OTHER[:4])
        assert filled.sessions.num_pinned == 3
        assert filled.evict(2) == OTHER[2:4][::-1], "used later, but not pinned"
        assert filled.evict(2) == KEYS[1:3][::-1], "the end of what is pinned"
        assert filled.evict(5) == KEYS[:1] and filled.sessions.cache.num_idle == 0

    def test_a_newer_prompt_ends_the_pins_of_what_only_the_older_one_had(
        self, filled: Filled
    ) -> None:
        filled.cache(KEYS[:5], "a")
        filled.cache(OTHER[:3], "a")
        [view] = filled.sessions.views("", None, 9)
        assert view.tokens == view.pinned == view.memory == 3 * BLOCK_SIZE
        assert set(filled.evict(3)) == set(KEYS[2:5])
        assert filled.sessions.cache.match(OTHER[:3]) != []

    def test_what_sessions_share_stays_until_the_last_one_ends(self, filled: Filled) -> None:
        filled.cache(KEYS[:4], "parent")
        filled.cache(OTHER[:4], "child")
        left = filled.sessions.end("", "child")
        assert left is not None and set(left.keys) == set(OTHER[2:4])
        assert [filled.key_of[block] for block in left.block_ids] == list(left.keys)
        assert filled.sessions.cache.drop(left.block_ids) == list(left.block_ids)
        assert len(filled.sessions.cache.match(KEYS[:4])) == 4
        assert filled.sessions.end("", "child") is None

    def test_what_a_sequence_uses_is_not_left(self, filled: Filled) -> None:
        filled.cache(KEYS[:4], "a")
        filled.sessions.cache.touch(0)
        left = filled.sessions.end("", "a")
        assert left is not None and set(left.keys) == set(KEYS[1:4]) and 0 not in left.block_ids

    def test_a_session_ends_with_its_time(self, filled: Filled) -> None:
        clock = _Clock()
        with clock.instead_of(self.clock):
            filled.cache(KEYS[:3], "long", ttl=100)
            filled.cache(OTHER[:3], "short", ttl=10)
            clock.now += 9
            [short, long] = filled.sessions.views("", None, 9)
            assert (short.name, long.name) == ("short", "long")
            assert short.ttl == pytest.approx(1) and long.ttl == pytest.approx(91)
            clock.now += 2
            assert [each.name for each in filled.sessions.views("", None, 9)] == ["long"]
            assert filled.evict(1) == [OTHER[2]]
            filled.cache(KEYS[:3], "default")
            [view] = filled.sessions.views("", "default", 1)
            assert view.ttl == pytest.approx(TTL)

    def test_a_session_has_at_most_its_quota(self, filled: Filled) -> None:
        long = [*KEYS, *(bytes([50 + i]) * 16 for i in range(4))]
        filled.cache(long, "a")
        [view] = filled.sessions.views("", None, 9)
        assert view.tokens == view.quota == QUOTA
        assert filled.evict(4) == long[8:][::-1], "its beginning is kept"

    def test_owners_have_their_own_sessions(self, filled: Filled) -> None:
        filled.cache(KEYS[:3], "a", owner="alice")
        filled.cache(OTHER[:4], "a", owner="bob")
        assert filled.sessions.views("", None, 9) == filled.sessions.views("eve", "a", 9) == []
        assert filled.sessions.end("eve", "a") is None
        [theirs] = filled.sessions.views("bob", None, 9)
        assert theirs.tokens == 4 * BLOCK_SIZE and filled.sessions.num_sessions == 2

    @pytest.mark.slow
    def test_any_number_of_sessions_with_any_names_take_bounded_room(self, filled: Filled) -> None:
        filled.cache(KEYS[:3], "mine", owner="alice")
        for i in range(100_000):
            filled.sessions.note(SessionHint(f"\0{i}\n", "mallory"), OTHER[:3])
        assert filled.sessions.num_sessions <= 20_000
        assert filled.sessions.views("alice", "mine", 1), "others' are forgotten first"
        assert filled.evict(9) == KEYS[:3][::-1], "pins of what is not cached block nothing"


@define
class _Clock:
    now: float = 1e9

    @contextmanager
    def instead_of(self, path: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(path, lambda: self.now)
            yield


class Filled:
    """Sessions around an LRU cache of blocks, in the order in which they are cached."""

    def __init__(self, item: SessionKeeper) -> None:
        need = SessionNeed(block_size=BLOCK_SIZE, num_blocks=64, ttl=TTL, quota=QUOTA)
        self.sessions = item.build(need, LRUPrefixCache(64))
        self.key_of: dict[int, bytes] = {}

    def cache(
        self,
        keys: Sequence[bytes],
        name: str | None = None,
        owner: str = "",
        ttl: float | None = None,
    ) -> None:
        """Compute a prompt, in a session if it is named."""
        cache, blocks = self.sessions.cache, list[int]()
        for block in cache.match(keys):
            cache.touch(block)
            blocks.append(block)
        for i in range(len(blocks), len(keys)):
            block = len(self.key_of)
            self.key_of[block] = keys[i]
            blocks.append(cache.insert(keys[i], block, keys[i - 1] if i else None))
        if name is not None:
            self.sessions.note(SessionHint(name, owner, ttl), keys)
        for block in reversed(blocks):
            cache.release(block)

    def evict(self, count: int) -> list[bytes]:
        return [self.key_of[block] for block in self.sessions.cache.evict(count)]


@define(eq=False)
class _Ordered:
    """Checks that pinned blocks leave last."""

    cache: PrefixCache
    inside: Watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    @property
    def num_idle(self) -> int:
        return self.cache.num_idle

    def evict(self, count: int) -> list[int]:
        unpinned, idle = set(self.inside.idle), self.cache.num_idle
        gone = self.cache.evict(count)
        assert len(gone) == min(count, idle), "a pin blocks eviction"
        assert set(gone) <= unpinned or unpinned <= set(gone), "a pinned block left first"
        return gone


class SessionMachine(CacheMachine):
    """Requests of sessions come and go, and time passes."""

    def __init__(self, item: SessionKeeper, groups: Sequence[CacheGroup], clock: _Clock) -> None:
        self.item, self.clock = item, clock
        super().__init__(LRUPrefixCache, groups)

    def around(self, prefix: PrefixCache) -> PrefixCache:
        need = SessionNeed(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, ttl=TTL, quota=QUOTA)
        self.sessions: Sessions = self.item.build(need, prefix)
        return _Ordered(self.sessions.cache, self.watched)

    def open_store(self) -> NoStore:
        store = NoStore()
        store.sessions = KeptSessions(self.sessions, self.groups, store)
        return store

    @rule(
        target=CacheMachine.requests,
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        name=st.sampled_from("abc"),
        owner=st.sampled_from(["alice", "bob"]),
        ttl=st.sampled_from(TTLS),
    )
    def add_to_session(
        self, prompt: list[int], max_tokens: int, name: str, owner: str, ttl: float | None
    ) -> str:
        request = Request(
            id=str(len(self.output)),
            token_ids=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens),
            session=SessionHint(name, owner, ttl),
        )
        self.open[request.id] = self.asked[request.id] = request
        self.output[request.id] = []
        self.scheduler.add(request)
        return request.id

    @rule(seconds=st.sampled_from([1.0, 10.0, 1e3, 1e7]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(name=st.sampled_from("abc"), owner=st.sampled_from(["alice", "bob"]))
    def end(self, name: str, owner: str) -> None:
        known = {view.name for view in self.store.sessions.views(owner, None, 9)}
        assert bool(self.store.sessions.end(owner, name)) == (name in known)
        assert not self.store.sessions.views(owner, name)

    @rule(owner=st.sampled_from(["alice", "bob"]))
    def look(self, owner: str) -> None:
        for view in self.store.sessions.views(owner, None, 9):
            assert 0 <= view.pinned <= view.tokens <= QUOTA and view.memory <= view.tokens
            assert view.ttl > 0
