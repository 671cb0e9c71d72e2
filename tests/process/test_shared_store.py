"""The contract of stores, for one of which two other ranks have parts. They are threads, on the
wires of real ranks."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import define, evolve, field
from torch import Tensor

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import BlockStore, Mover, Placed, StoreIndex, StoreNeed
from inferno.core.types import Step
from inferno.process.ranks import messages
from inferno.process.ranks.keeping_blocks import MOST_RUNS, KeptBlocks, runs_of
from inferno.process.ranks.messages import Change
from inferno.process.ranks.sharing_blocks import SharedStore
from inferno.process.ranks.wire import Wire
from inferno.testing import StoreTests
from inferno.testing.block_store import KEYS, Filled

pytest.importorskip("inferno_offload")

FOLLOWERS = 2
STEP, STEPPED = b"S", b"s"


def other_bytes(data: Tensor, rank: int) -> Tensor:
    """What a rank has where the first one has these bytes."""
    return data ^ (0x50 + rank)


@define(eq=False)
class Follower:
    """A rank in a thread, with its store and its cache."""

    rank: int
    kept: KeptBlocks
    wire: Wire
    cache: list[list[Tensor]] = field(factory=list)
    thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while True:
            for fetched in self.kept.answers():
                self.wire.send(messages.FETCHED, messages.encode(fetched))
            if any(asked := self.kept.asked()):
                body = messages.encode(messages.Asked(self.rank, *asked))
                self.wire.send(messages.ASKED, body)
            if (message := self.wire.receive(1.0, self.kept.waits_for)) is None:
                continue
            kind, body = message
            if kind == messages.STORE:
                self.kept.take(messages.decode_store_call(body))
            elif kind == messages.CHANGE:
                self.kept.close()
                self.wire.send(messages.CHANGED)
                return
            elif kind == messages.END:
                return
            else:
                step: Step = messages.decode_step(body).step
                self.kept.note(step)
                self.kept.mover.save(step.saves)
                self.kept.mover.load(step.loads)
                self.wire.send(STEPPED)


@define(eq=False)
class Threads:
    """The other ranks (`sharing_blocks.Others`)."""

    followers: list[Follower]
    wires: list[Wire]
    ranks: int = 1 + FOLLOWERS
    is_over: bool = False
    told: list[messages.Fetched | messages.Asked] = field(factory=list)
    selector: selectors.DefaultSelector = field(factory=selectors.DefaultSelector)

    def __attrs_post_init__(self) -> None:
        for wire in self.wires:
            self.selector.register(wire, selectors.EVENT_READ)

    @property
    def descriptor(self) -> int:
        return self.selector.fileno()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        for wire in self.wires:
            wire.send(kind, body)

    def take_told(self) -> Sequence[messages.Fetched | messages.Asked]:
        for wire in self.wires:
            while (message := wire.receive(0.0)) is not None:
                self.told.append(messages.decode_told(*message))
        told, self.told = self.told, []
        return told

    def wait(self, wanted: bytes) -> None:
        """Wait for an answer of each."""
        for wire in self.wires:
            while (message := wire.receive(30.0)) is not None and message[0] != wanted:
                self.told.append(messages.decode_told(*message))
            assert message is not None, "a rank does not answer"

    @contextmanager
    def changing(self, change: Change) -> Iterator[None]:
        assert change.action == "close_store"
        self.send(messages.CHANGE)
        yield
        self.wait(messages.CHANGED)
        self.is_over = True


class Stepped:
    """Sends the others what steps save and load, and compares what they have loaded."""

    others: Any

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        super().register(groups)  # type: ignore[misc]  # of the store that it is mixed into
        self.cache = groups
        for follower in self.threads.followers:
            follower.cache = [[each.clone() for each in pieces] for pieces in groups]
            follower.kept.mover.register(follower.cache)

    @property
    def threads(self) -> Threads:
        assert isinstance(self.others, Threads)
        return self.others

    def save(self, saves: Sequence[Placed]) -> None:
        for follower, piece, mirror, place in self._places(saves):
            mirror[place] = other_bytes(piece[place], follower.rank)
        self._step(Step(slices=(), saves=tuple(saves)))
        super().save(saves)  # type: ignore[misc]

    def load(self, loads: Sequence[Placed]) -> None:
        self._step(Step(slices=(), loads=tuple(loads)))
        super().load(loads)  # type: ignore[misc]
        for follower, piece, mirror, place in self._places(loads):
            assert mirror[place].equal(other_bytes(piece[place], follower.rank))

    def _places(self, placed: Sequence[Placed]) -> Iterator[tuple[Follower, Tensor, Tensor, int]]:
        for each in placed:
            for group, place in enumerate(each.places):
                if place is None:
                    continue
                for follower in self.threads.followers:
                    for piece, mirror in zip(self.cache[group], follower.cache[group], strict=True):
                        yield follower, piece, mirror, place

    def _step(self, step: Step) -> None:
        self.others.send(STEP, messages.encode_step(step, []))
        self.threads.wait(STEPPED)


class Stepping(Stepped, SharedStore):
    """The first rank's store."""


def end(store: Any) -> None:
    """End a store as a crash would: nothing more is written."""
    if store.files is None:
        return
    store.files._work.clear()
    store.files.close()
    store._folder.parts.close()
    os.close(store._folder._lock)


def shared_by_threads(own: BlockStore, damages: int = 0) -> BlockStore:
    """Return a store whose blocks all ranks have parts of. Every `damages` starts the files of each
    follower are damaged once; 0: never."""
    starts = [0]

    def follower(rank: int, need: StoreNeed) -> tuple[Follower, Wire]:
        if need.folder is not None:
            folder = need.folder.with_name(f"{need.folder.name}-of-rank-{rank}")
            if damages and starts[0] % damages == rank:
                for path in folder.glob("*/data/parts"):
                    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
            need = evolve(need, folder=folder)
        here, there = socket.socketpair()
        return Follower(rank, KeptBlocks(*own.build(need)), Wire(there)), Wire(here)

    def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
        built = own.build(need)
        starts[0] += 1
        pairs = [follower(rank, need) for rank in range(1, 1 + FOLLOWERS)]
        threads = Threads([each for each, _ in pairs], [wire for _, wire in pairs])
        shared = Stepping(threads, *built)
        return shared, shared

    return evolve(own, build=build)


class SharedTests(StoreTests):
    store = "offload"
    max_examples = 20
    damages: ClassVar[int] = 0

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        return shared_by_threads(catalog.named(BlockStore, "offload").item, cls.damages)

    @staticmethod
    def abandon(built: tuple[StoreIndex, Mover]) -> None:
        shared = built[1]
        assert isinstance(shared, Stepping)
        shared.others.send(messages.END)
        for follower in shared.threads.followers:
            follower.thread.join()
        for store in (shared.mover, *(each.kept.mover for each in shared.threads.followers)):
            end(store)


class TestSharedDisk(SharedTests):
    """All ranks keep what they were given."""


@pytest.mark.slow
class TestSharedDamagedDisk(SharedTests):
    """A follower has often lost what the others have."""

    damages = 3
    test_blocks_come_back_after_a_restart: Any = None
    test_parts_without_bytes_are_kept_as_any: Any = None


class TestSharedHost(SharedTests):
    keeps_files = False


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    item = shared_by_threads(load_catalog().named(BlockStore, "offload").item)
    return Filled(item.build(TestSharedDisk.need_of(tmp_path / "kv")))


def test_nothing_is_near_before_all_ranks_have_fetched_it_nor_after_its_release(
    filled: Filled,
) -> None:
    filled.save(KEYS[0], 3, 5)
    assert filled.index.groups_of(KEYS[0]) == 0b11 and filled.index.near(KEYS[0]) == 0
    filled.fetch(KEYS[0])
    assert filled.index.near(KEYS[0]) == 0b11
    filled.index.fetch([(KEYS[0], 0b01)], "another")
    filled.wait("another")
    filled.index.release("owner")
    assert filled.index.near(KEYS[0]) == 0b01, "the other one holds a part of it"
    filled.index.release("another")
    assert filled.index.near(KEYS[0]) == 0
    filled.mover.close()


def test_what_a_follower_lacks_is_no_longer_promised_until_it_is_saved_again(
    filled: Filled,
) -> None:
    filled.save(KEYS[0], 3, 5)
    shared: Any = filled.mover
    shared.threads.followers[1].kept.index.drop(KEYS[0])
    filled.fetch(KEYS[0])
    assert filled.index.groups_of(KEYS[0]) == filled.index.near(KEYS[0]) == 0
    assert filled.index.usage.lost_parts == 2
    filled.save(KEYS[0], 3, None)
    assert filled.index.groups_of(KEYS[0]) == 0b01
    filled.index.release("owner")
    filled.fetch(KEYS[0])
    assert filled.index.near(KEYS[0]) == 0b01
    filled.mover.close()


def test_an_answer_to_a_request_that_has_gone_counts_for_nothing(filled: Filled) -> None:
    filled.save(KEYS[0], 3, 5)
    filled.index.fetch([(KEYS[0], 0b11)], "owner")
    filled.index.release("owner")
    filled.fetch(KEYS[1])
    assert filled.index.near(KEYS[0]) == 0 and not filled.mover._fetches  # type: ignore[attr-defined]
    filled.mover.close()


def test_what_was_said_of_a_store_is_not_taken_for_the_next_one(filled: Filled) -> None:
    """Fetches are numbered anew in that, and would end before they have."""
    filled.save(KEYS[0], 3, 5)
    filled.index.fetch([(KEYS[0], 0b11)], "owner")
    threads = filled.mover.threads  # type: ignore[attr-defined]
    filled.mover.close()
    assert not threads.told


def test_an_answer_is_short_whatever_is_lost() -> None:
    """A rank that sends it may be waited for before it is read."""
    assert runs_of([]) == runs_of([0, 0]) == []
    assert runs_of([0, 1, 1, 3, 0, 2]) == [(1, 2, 1), (3, 1, 3), (5, 1, 2)]
    many = [each for _ in range(MOST_RUNS + 1) for each in (0, 2, 0, 1)]
    assert runs_of(many) == [(0, len(many), 3)]
    answer = messages.encode(messages.Fetched(7, runs_of(many[: 2 * MOST_RUNS])))
    assert MOST_RUNS < len(answer) < 1 << 15
