"""Tests of every cache policy: in any order of requests, no sequence attends to another's keys and
values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

import pytest
from attrs import define, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from inferno.catalog import Catalog
from inferno.contracts import CachePolicy, PrefixCache
from inferno.core.kvcache import (
    CacheGroup,
    CacheGroups,
    FullGroup,
    Snapshots,
    StateGroup,
    WindowGroup,
    extend_keys,
)
from inferno.core.schedule.scheduler import Scheduler
from inferno.request.requests import EngineOutput, FinishReason, Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores import NO_STORE, NoStore
from inferno.testing.alike import alike
from inferno.testing.fake_runner import FakeRunner, continuation, views_of
from inferno.testing.installed import Installed

BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN, VOCAB_SIZE = 2, 14, 20, 2
SALTS = ("", "other")
BUDGET = 6
ROWS = 4
WINDOWS: Mapping[int, int] = {3: 6, 5: 8}
"""Window -> blocks of its group: enough for little more than one sequence."""
CHUNK = 6
GROUPS: Mapping[str, Callable[[], list[CacheGroup]]] = {
    "all": lambda: [FullGroup(), *_windows(), _states(3, num_snapshots=1)],
    "full": lambda: [FullGroup()],
    "windows": lambda: [FullGroup(), *_windows()],
    "chunks": lambda: [FullGroup(), WindowGroup(1, 8, BLOCK_SIZE, CHUNK, chunked=True)],
    "states": lambda: [FullGroup(), _states(1, num_snapshots=3)],
}


def _windows() -> list[CacheGroup]:
    return [WindowGroup(i, WINDOWS[w], BLOCK_SIZE, w) for i, w in enumerate(WINDOWS, 1)]


def _states(index: int, num_snapshots: int) -> CacheGroup:
    return StateGroup(index, Snapshots(ROWS, num_snapshots), BLOCK_SIZE, interval=6)


class CachePolicyTests(Installed):
    """Set `policy` to its registered name. A policy that caches nothing sets `remembers =
    False`."""

    policy: ClassVar[str]
    remembers: ClassVar[bool] = True
    max_examples: ClassVar[int] = 60

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> CachePolicy:
        return catalog.named(CachePolicy, cls.policy).item

    @alike
    @pytest.mark.parametrize("groups", GROUPS)
    def test_no_leak_no_double_owner_and_right_content_whatever_happens(
        self, item: CachePolicy, groups: str
    ) -> None:
        run_state_machine_as_test(
            lambda: CacheMachine(item.build, GROUPS[groups]()),  # type: ignore[arg-type]  # whatever makes one will do
            settings=settings(
                max_examples=self.max_examples,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    def test_a_prompt_seen_before_is_found(self, item: CachePolicy) -> None:
        prompt = [0, 1, 1, 0, 1, 0, 0]
        machine = CacheMachine(item.build)
        for _ in range(2):
            machine.add(prompt, 1, 0, "")
            machine.drain()
        assert machine.scheduler.stats.cached_tokens == (6 if self.remembers else 0)

    def test_a_new_policy_has_nothing_to_give_back(self, item: CachePolicy) -> None:
        prefix = _built(item.build)
        assert prefix.num_idle == 0 and prefix.match([b"key"]) == []
        assert prefix.evict(3) == prefix.drop([]) == prefix.clear() == []
        assert not any(prefix.contains(block) for block in range(NUM_BLOCKS))

    def test_clearing_gives_every_idle_block_back(self, item: CachePolicy) -> None:
        machine = CacheMachine(item.build)
        machine.add([0, 1, 1, 0, 1], 4, 0, "")
        machine.drain()
        machine.groups.reset()
        assert machine.groups.prefix is not None and machine.groups.prefix.num_idle == 0
        machine.groups.check()
        assert machine.groups.available() == NUM_BLOCKS

    def test_a_dropped_block_is_found_no_more_and_is_free(self, item: CachePolicy) -> None:
        machine = CacheMachine(item.build)
        machine.add(prompt := [0, 1, 1, 0, 1, 0, 0], 1, 0, "")
        machine.drain()
        prefix, keys = machine.watched, list[bytes]()
        extend_keys(keys, prompt, BLOCK_SIZE)
        blocks = prefix.match(keys)
        machine.groups.drop(blocks[1:2])
        if len(prefix.cached) < len(blocks):  # else it is of version 1, or remembers nothing
            assert prefix.match(keys) == blocks[:1]
        machine.groups.reset()
        machine.groups.check()
        assert machine.groups.available() == NUM_BLOCKS


def _built(build: Callable[[int], PrefixCache | None]) -> PrefixCache:
    prefix = build(NUM_BLOCKS)
    assert prefix is not None, "a policy without a prefix cache cannot be tested"
    return prefix


@define(eq=False)
class Watched:
    """Wraps a prefix cache and checks its answers against its inputs. See
    `contracts.PrefixCache`."""

    cache: PrefixCache
    runner: FakeRunner
    group: CacheGroup
    """The first, whose content tells what a block is."""
    cached: dict[int, bytes] = field(factory=dict)
    idle: set[int] = field(factory=set)
    parents: dict[bytes, bytes | None] = field(factory=dict)

    @property
    def num_idle(self) -> int:
        assert self.cache.num_idle == len(self.idle)
        return self.cache.num_idle

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks = self.cache.match(keys)
        assert [self.cached.get(block) for block in blocks] == list(keys[: len(blocks)]), (
            "a block of another key"
        )
        return blocks

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        assert parent == self._parent(key, block_id), "it is told of another parent"
        self.parents[key] = parent
        known = self.cache.insert(key, block_id, parent)
        if known != block_id:
            assert self.cached.get(known) == key, "the block it returns does not hold the key"
        elif self.cache.contains(block_id):
            assert key not in self.cached.values() or self.cached.get(block_id) == key, (
                "a key has two blocks"
            )
            self.cached[block_id] = key
        return known

    def _parent(self, key: bytes, block_id: int) -> bytes | None:
        """The key before this one. Asserts that the block's content matches the key."""
        place = self.group.place(block_id)
        assert place is not None, "a block just computed has no place"
        tokens = self.runner.content(place)
        chains: list[list[bytes]] = [[] for _ in SALTS]
        for chain, salt in zip(chains, SALTS, strict=True):
            extend_keys(chain, tokens, BLOCK_SIZE, salt)
        [chain] = [chain for chain in chains if chain[-1] == key]
        return chain[-2] if len(chain) > 1 else None

    def contains(self, block_id: int) -> bool:
        assert self.cache.contains(block_id) == (block_id in self.cached)
        return block_id in self.cached

    def touch(self, block_id: int) -> None:
        self.idle.remove(block_id)
        self.cache.touch(block_id)

    def release(self, block_id: int) -> None:
        assert block_id in self.cached
        self.idle.add(block_id)
        self.cache.release(block_id)

    def evict(self, count: int) -> list[int]:
        return self._forgotten(self.cache.evict(count), min(count, len(self.idle)))

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        assert set(block_ids) <= self.idle, "a block that is in use cannot be dropped"
        gone = self.cache.drop(block_ids)
        assert gone in (list(block_ids), []), "it drops all of them, or in version 1 none"
        self._forget(gone)
        return gone

    def clear(self) -> list[int]:
        return self._forgotten(self.cache.clear(), len(self.idle))

    def _forgotten(self, blocks: list[int], wanted: int) -> list[int]:
        assert len(blocks) == len(set(blocks)) == wanted, "it returns the wrong number of blocks"
        assert set(blocks) <= self.idle, "it evicts a block that is in use"
        gone = self._forget(blocks)
        assert not gone & {self.parents[key] for key in self.cached.values()}, (
            "it evicts the predecessor of a cached block"
        )
        return blocks

    def _forget(self, blocks: Sequence[int]) -> set[bytes]:
        self.idle -= set(blocks)
        return {self.cached.pop(block) for block in blocks}


class CacheMachine(RuleBasedStateMachine):
    """Requests come, run, share prefixes, are preempted and aborted, over these cache groups."""

    requests: Bundle[str] = Bundle("requests")

    def __init__(
        self,
        build: Callable[[int], PrefixCache | None],
        groups: Sequence[CacheGroup] = (FullGroup(),),
    ) -> None:
        super().__init__()
        self.open: dict[str, Request] = {}
        self.asked: dict[str, Request] = {}
        self.output: dict[str, list[int]] = {}
        self.begin(build, groups)

    def begin(
        self, build: Callable[[int], PrefixCache | None], groups: Sequence[CacheGroup]
    ) -> None:
        self.runner = FakeRunner(BLOCK_SIZE, VOCAB_SIZE, *views_of(groups))
        self.watched = Watched(_built(build), self.runner, groups[0])
        self.groups = CacheGroups(NUM_BLOCKS, BLOCK_SIZE, self.around(self.watched), groups)
        self.store = self.open_store()
        self.scheduler = Scheduler(
            self.groups,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            store=self.store,
        )

    def around(self, prefix: PrefixCache) -> PrefixCache:
        """Return the prefix cache of the machine, made of a policy's."""
        return prefix

    def open_store(self) -> NoStore:
        return NO_STORE

    @rule(
        target=requests,
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 1),
        salt=st.sampled_from(SALTS),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int, salt: str) -> str:
        return self._ask(prompt, max_tokens, priority, salt)

    def _ask(self, prompt: Sequence[int], max_tokens: int, priority: int, salt: str) -> str:
        request = Request(
            id=str(len(self.output)),
            token_ids=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens),
            priority=priority,
            cache_salt=salt,
        )
        self.open[request.id] = self.asked[request.id] = request
        self.output[request.id] = []
        self.scheduler.add(request)
        return request.id

    @rule(target=requests, request_id=requests, max_tokens=st.integers(1, 12))
    def fork(self, request_id: str, max_tokens: int) -> Any:
        """Ask again what is being answered, or was."""
        request = self.asked[request_id]
        salt, priority = request.cache_salt, request.priority
        return self._ask(request.token_ids, max_tokens, priority, salt)

    @rule(request_id=consumes(requests))
    def abort(self, request_id: str) -> None:
        assert self.scheduler.abort(request_id) == (request_id in self.open)
        self.open.pop(request_id, None)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            step = self.scheduler.plan()
            if step.is_empty and self.store.waits_for is not None:
                self.take([])
                self.store.sleep()
                continue
            assert not (step.is_empty and self.open), "requests are waiting but none runs"
            if step.is_empty:
                return
            self.take(self.scheduler.commit(step, self.runner.run(step)))

    def take(self, outputs: list[EngineOutput]) -> None:
        """Take the outputs of a step, and those of the store."""
        for token in self.store.answered(outputs):
            assert token.token_id is not None, "these requests end with a token"
            self.output[token.request_id].append(token.token_id)
            if token.finish is not None:
                self._finished(self.open.pop(token.request_id), token.finish)

    def _finished(self, request: Request, finish: FinishReason) -> None:
        count = min(request.params.max_tokens or 0, MAX_MODEL_LEN - len(request.token_ids))
        assert self.output[request.id] == continuation(request.token_ids, count, VOCAB_SIZE)
        assert finish == FinishReason.LENGTH

    @rule()
    def reset(self) -> None:
        self.groups.reset()

    @rule(pick=st.randoms(use_true_random=False))
    def forget(self, pick: Random) -> None:
        """Forget some idle blocks, wherever in a prefix they are."""
        idle = self.watched.idle
        self.groups.drop(pick.sample(sorted(idle), pick.randint(0, len(idle))))

    @rule()
    def drain(self) -> None:
        """Run until all requests are answered; then every block must be free or idle."""
        for _ in range(500):
            if self.open:
                self.step(1)
        assert not self.open, "requests never end"
        assert self.groups.usage == 0

    @invariant()
    def nothing_is_lost(self) -> None:
        self.scheduler.check()

    def teardown(self) -> Any:
        self.drain()
