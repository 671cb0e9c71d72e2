"""What every cache policy must do: whatever is asked, in whatever order, no sequence ever meets
another's keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from inferno.core.kvcache import BlockPool, extend_keys
from inferno.core.sampling_params import SamplingParams
from inferno.core.scheduler import Scheduler
from inferno.core.types import FinishReason, Request
from inferno.testing.fake_runner import FakeRunner, continuation
from inferno.testing.installed import Installed

BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN, VOCAB_SIZE = 2, 14, 20, 2
SALTS = ("", "other")
BUDGET = 6
NO_WINDOWS: Mapping[int, int] = {}
WINDOWS: Mapping[int, int] = {3: 6, 5: 8}
"""Window blocks for little more than one sequence."""


class CachePolicyTests(Installed):
    """Set `policy` to the name it is registered by. One that is meant to remember nothing sets
    `remembers = False`."""

    policy: ClassVar[str]
    remembers: ClassVar[bool] = True
    max_examples: ClassVar[int] = 60

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> CachePolicy:
        return catalog.named(CachePolicy, cls.policy).item

    @pytest.mark.parametrize("windows", [NO_WINDOWS, WINDOWS], ids=["blocks", "window blocks"])
    def test_no_leak_no_double_owner_and_right_content_whatever_happens(
        self, item: CachePolicy, windows: Mapping[int, int]
    ) -> None:
        run_state_machine_as_test(
            lambda: _Machine(item.build, windows),  # type: ignore[arg-type]  # whatever makes one will do
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
        machine = _Machine(item.build)
        for _ in range(2):
            machine.add(prompt, 1, 0, "")
            machine.drain()
        assert machine.scheduler.stats.cached_tokens == (6 if self.remembers else 0)

    def test_a_new_policy_has_nothing_to_give_back(self, item: CachePolicy) -> None:
        prefix = _built(item.build)
        assert (prefix.num_idle, prefix.match([b"key"]), prefix.evict(3), prefix.clear()) == (
            0,
            [],
            [],
            [],
        )
        assert not any(prefix.keeps(block) for block in range(NUM_BLOCKS))

    def test_clearing_gives_every_idle_block_back(self, item: CachePolicy) -> None:
        machine = _Machine(item.build)
        machine.add([0, 1, 1, 0, 1], 4, 0, "")
        machine.drain()
        machine.pool.forget()
        assert machine.pool.prefix is not None and machine.pool.prefix.num_idle == 0
        machine.pool.check()
        assert len(machine.pool.allocate(NUM_BLOCKS)) == NUM_BLOCKS


def _built(build: Callable[[int], PrefixCache | None]) -> PrefixCache:
    prefix = build(NUM_BLOCKS)
    assert prefix is not None, "a policy that remembers nothing has nothing to test"
    return prefix


@define(eq=False)
class _Watched:
    """A prefix cache under watch: what it may do depends on what it was told. See
    `contracts.PrefixCache`."""

    cache: PrefixCache
    runner: FakeRunner
    kept: dict[int, bytes] = field(factory=dict)
    idle: set[int] = field(factory=set)
    parents: dict[bytes, bytes | None] = field(factory=dict)

    @property
    def num_idle(self) -> int:
        assert self.cache.num_idle == len(self.idle)
        return self.cache.num_idle

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks = self.cache.match(keys)
        assert [self.kept.get(block) for block in blocks] == list(keys[: len(blocks)]), (
            "a block of another key"
        )
        return blocks

    def keep(self, key: bytes, block_id: int) -> int:
        self.parents[key] = self._parent(key, block_id)
        known = self.cache.keep(key, block_id)
        if known != block_id:
            assert self.kept.get(known) == key, "the block it names does not hold the key"
        elif self.cache.keeps(block_id):
            assert key not in self.kept.values() or self.kept.get(block_id) == key, (
                "a key has two blocks"
            )
            self.kept[block_id] = key
        return known

    def _parent(self, key: bytes, block_id: int) -> bytes | None:
        """The key before this one; the block's content must be what the key names."""
        tokens = self.runner.content[block_id * BLOCK_SIZE + BLOCK_SIZE - 1]
        chains: list[list[bytes]] = [[] for _ in SALTS]
        for chain, salt in zip(chains, SALTS, strict=True):
            extend_keys(chain, tokens, BLOCK_SIZE, salt)
        [chain] = [chain for chain in chains if chain[-1] == key]
        return chain[-2] if len(chain) > 1 else None

    def keeps(self, block_id: int) -> bool:
        assert self.cache.keeps(block_id) == (block_id in self.kept)
        return block_id in self.kept

    def use(self, block_id: int) -> None:
        self.idle.remove(block_id)
        self.cache.use(block_id)

    def release(self, block_id: int) -> None:
        assert block_id in self.kept
        self.idle.add(block_id)
        self.cache.release(block_id)

    def evict(self, count: int) -> list[int]:
        return self._forgotten(self.cache.evict(count), min(count, len(self.idle)))

    def clear(self) -> list[int]:
        return self._forgotten(self.cache.clear(), len(self.idle))

    def _forgotten(self, blocks: list[int], wanted: int) -> list[int]:
        assert len(blocks) == len(set(blocks)) == wanted, (
            "it gives back more or fewer blocks than it should"
        )
        assert set(blocks) <= self.idle, "it evicts a block that is in use"
        self.idle -= set(blocks)
        gone = {self.kept.pop(block) for block in blocks}
        assert not gone & {self.parents[key] for key in self.kept.values()}, (
            "it evicts what a kept block continues"
        )
        return blocks


class _Machine(RuleBasedStateMachine):
    """Requests come, run, share prefixes, are preempted and aborted."""

    requests: Bundle[str] = Bundle("requests")

    def __init__(
        self, build: Callable[[int], PrefixCache | None], windows: Mapping[int, int] = NO_WINDOWS
    ) -> None:
        super().__init__()
        self.runner = FakeRunner(BLOCK_SIZE, VOCAB_SIZE, tuple(windows))
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, _Watched(_built(build), self.runner), windows)
        self.scheduler = Scheduler(
            self.pool, max_model_len=MAX_MODEL_LEN, max_num_seqs=4, max_num_batched_tokens=BUDGET
        )
        self.open: dict[str, Request] = {}
        self.output: dict[str, list[int]] = {}

    @rule(
        target=requests,
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 1),
        salt=st.sampled_from(SALTS),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int, salt: str) -> str:
        request = Request(
            id=str(len(self.output)),
            token_ids=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens),
            priority=priority,
            cache_salt=salt,
        )
        self.open[request.id] = request
        self.output[request.id] = []
        self.scheduler.add(request)
        return request.id

    @rule(request_id=consumes(requests))
    def abort(self, request_id: str) -> None:
        assert self.scheduler.abort(request_id) == (request_id in self.open)
        self.open.pop(request_id, None)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            step = self.scheduler.plan()
            assert step.slices or not self.open, "requests wait and nothing runs"
            if not step.slices:
                return
            for token in self.scheduler.commit(step, self.runner.run(step)):
                assert token.token_id is not None, "these requests end with a token"
                self.output[token.request_id].append(token.token_id)
                if token.finish is not None:
                    self._finished(self.open.pop(token.request_id), token.finish)

    def _finished(self, request: Request, finish: FinishReason) -> None:
        count = min(request.params.max_tokens or 0, MAX_MODEL_LEN - len(request.token_ids))
        assert self.output[request.id] == continuation(request.token_ids, count, VOCAB_SIZE)
        assert finish == FinishReason.LENGTH

    @rule()
    def forget(self) -> None:
        self.pool.forget()

    @rule()
    def drain(self) -> None:
        """Everything that was asked for is answered, and every block is free or idle again."""
        for _ in range(500):
            if self.open:
                self.step(1)
        assert not self.open, "requests never end"
        assert self.pool.usage == 0

    @invariant()
    def nothing_is_lost(self) -> None:
        self.scheduler.check()

    def teardown(self) -> Any:
        self.drain()
