"""The contract of stores, for that of a pipeline's last stage: what it is told of steps in flight
is done when they are computed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import define, evolve
from hypothesis import strategies as st
from hypothesis.stateful import rule

from inferno.builtin.first_come import FirstCome
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import BlockStore, Mover, Placed, StoreIndex, StoreNeed
from inferno.core.kvcache import CacheGroup, FullGroup, Snapshots, StateGroup, WindowGroup
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Step
from inferno.plan.turns import InTurns
from inferno.process.ranks import messages
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.messages import Change
from inferno.process.ranks.sharing_blocks import SharedStore
from inferno.testing import StoreTests
from inferno.testing import block_store as kit
from inferno.testing.block_store import KEYS, Filled
from inferno.testing.cache_policy import BLOCK_SIZE, BUDGET, MAX_MODEL_LEN, ROWS
from inferno.testing.store_machine import StoreMachine

pytest.importorskip("inferno_offload")

SILENCE, _ = os.pipe()
"""A descriptor that is never readable."""
STAGES = 3
FLIGHT = STAGES * BUDGET // BLOCK_SIZE
"""Blocks of the tokens of the steps in flight."""


def _windows() -> list[CacheGroup]:
    each = ((1, 3), (2, 5))
    return [WindowGroup(i, window // 2 + 1 + FLIGHT, BLOCK_SIZE, window) for i, window in each]


def _states(index: int, count: int) -> CacheGroup:
    return StateGroup(index, Snapshots(ROWS, count), BLOCK_SIZE, interval=6)


GROUPS: Mapping[str, Callable[[], list[CacheGroup]]] = {
    "full": lambda: [FullGroup()],
    "windows": lambda: [FullGroup(), *_windows()],
    "chunks": lambda: [FullGroup(), WindowGroup(1, 4 + FLIGHT, BLOCK_SIZE, 6, chunked=True)],
    "states": lambda: [FullGroup(), _states(1, 3)],
    "all": lambda: [FullGroup(), *_windows(), _states(3, 1)],
}
"""As those of the kit, with places for the steps in flight."""


@define(eq=False)
class NoOthers:
    """No other ranks (`sharing_blocks.Others`)."""

    ranks: int = 1
    is_over: bool = False
    descriptor: int = SILENCE

    def send(self, kind: bytes, body: bytes = b"") -> None: ...

    def take_told(self) -> Sequence[messages.Fetched | messages.Asked]:
        return ()

    @contextmanager
    def changing(self, change: Change) -> Iterator[None]:
        yield


class LateStore(SharedStore):
    """As the first rank of the last stage has it."""

    @property
    def late(self) -> LateBlocks:
        assert isinstance(self.mover, LateBlocks)
        return self.mover


def late(own: BlockStore) -> BlockStore:
    def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
        blocks = LateBlocks.of(own.build(need))
        shared = LateStore(NoOthers(), blocks, blocks)
        return shared, shared

    return evolve(own, build=build)


class StagedMachine(StoreMachine):
    """As many steps are in flight as there are stages."""

    def begin(self, build: Any, groups: Sequence[CacheGroup]) -> None:
        self.pending = deque[Step]()
        super().begin(build, groups)
        self.scheduler = Scheduler(
            self.groups,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            store=self.store,
            queue=lambda need: InTurns(FirstCome(need), STAGES),
        )

    @property
    def shared(self) -> LateStore:
        assert isinstance(self.built[1], LateStore)
        return self.built[1]

    def settle(self) -> None:
        while self.pending:
            self.compute()

    def compute(self) -> tuple[Step, Any]:
        step = self.pending.popleft()
        sampled = self.runner.run(step)
        self.shared.late.computed()
        return step, sampled

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            step = self.scheduler.plan()
            if not step.is_empty:
                self.pending.append(step)
                self.shared.late.launched()
            if len(self.pending) <= (0 if step.is_empty else STAGES - 1):
                if step.is_empty and self.store.waits_for is None:
                    assert not self.open, "requests are waiting but none runs"
                    return
                if step.is_empty:
                    self.take([])
                    self.settle()
                    self.store.sleep()
                continue
            self.take(self.scheduler.commit(*self.compute()))

    @rule()
    def drain(self) -> None:
        super().drain()
        while self.pending or self.scheduler.busy:
            self.step(1)

    def save_last(self) -> None:
        self.settle()
        if saves := self.store.take_last():
            self.pending.append(Step((), saves=saves))
            self.shared.late.launched()
            self.settle()


class LateTests(StoreTests):
    store = "offload"
    max_examples: ClassVar[int] = 20

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        return late(catalog.named(BlockStore, "offload").item)

    @pytest.fixture(autouse=True)
    def staged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kit, "StoreMachine", StagedMachine)
        monkeypatch.setattr(kit, "GROUPS", GROUPS)

    @staticmethod
    def abandon(built: tuple[StoreIndex, Mover]) -> None:
        shared = built[1]
        assert isinstance(shared, LateStore)
        own: Any = shared.late.mover
        if own.files is not None:
            own.files._work.clear()
            own.files.close()
            own._folder.parts.close()
            os.close(own._folder._lock)


class TestLateDisk(LateTests):
    pass


class TestLateHost(LateTests):
    keeps_files = False


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    item = late(load_catalog().named(BlockStore, "offload").item)
    return Filled(item.build(TestLateDisk.need_of(tmp_path / "kv", host_limit=1 << 20)))


def staged(filled: Filled) -> LateBlocks:
    assert isinstance(filled.index, LateStore)
    return filled.index.late


def test_a_load_in_flight_finds_what_was_released_since(filled: Filled) -> None:
    steps = staged(filled)
    filled.save(KEYS[0], 3, 5)
    saved = filled.bytes_at(0, 3)
    filled.fetch(KEYS[0])
    steps.launched()
    filled.index.release("owner")
    assert filled.index.near(KEYS[0]) == 0, "the next one that wants it fetches it"
    own: Any = steps.mover
    assert own._holders, "nothing is let go before the step"
    filled.mover.load([Placed(KEYS[0], (1, 2))])
    assert filled.bytes_at(0, 1) == saved
    steps.computed()
    assert not own._holders
    filled.mover.close()


def test_what_is_dropped_while_its_save_is_in_flight_does_not_come_back(filled: Filled) -> None:
    steps = staged(filled)
    placed = Placed(KEYS[0], (3, 5))
    filled.index.note(placed)
    steps.launched()
    assert filled.index.groups_of(KEYS[0]) == 0b11
    filled.index.drop(KEYS[0])
    assert filled.index.groups_of(KEYS[0]) == 0
    again = Placed(KEYS[0], (4, None))
    filled.index.note(again)
    steps.launched()
    assert filled.index.groups_of(KEYS[0]) == 0b01
    right = filled.bytes_at(0, 4)
    filled.mover.save([placed])
    steps.computed()
    assert filled.index.groups_of(KEYS[0]) == 0b01, "as of what was planned"
    filled.mover.save([again])
    steps.computed()
    assert steps.index.groups_of(KEYS[0]) == 0b01
    filled.fetch(KEYS[0])
    filled.mover.load([Placed(KEYS[0], (1, None))])
    assert filled.bytes_at(0, 1) == right
    filled.mover.close()


def test_an_end_of_a_fetch_that_was_given_up_is_not_that_of_the_next_one(filled: Filled) -> None:
    steps = staged(filled)
    filled.save(KEYS[0], 3, 5)
    filled.index.fetch([(KEYS[0], 0b11)], "owner")  # it has ended, and nobody has asked
    steps.launched()
    filled.index.release("owner")
    filled.index.fetch([(KEYS[0], 0b11)], "owner")
    assert "owner" not in filled.mover.poll()
    steps.computed()
    assert "owner" in filled.mover.poll() and filled.index.near(KEYS[0]) == 0b11
    filled.mover.close()
