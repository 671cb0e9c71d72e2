"""Tiers and a link as one store: the contracts of both, and histories of requests over them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from tests.stores.pretended_link import PretendedLink

from inferno.catalog import Catalog
from inferno.contracts import (
    BlockStore,
    Link,
    Mover,
    Placed,
    StoreIndex,
    StoreNeed,
)
from inferno.core.kvcache import CacheGroup
from inferno.stores import NoStore
from inferno.stores.keys import extend_keys
from inferno.stores.linked import Decoding, Prefilling
from inferno.stores.stacked import Stacked, StackedTiers, StoreHalves
from inferno.testing import LinkTests, StoreTests, alike
from inferno.testing.block_store import KEYS, SIZES, Filled
from inferno.testing.cache_policy import BLOCK_SIZE, GROUPS, VOCAB_SIZE
from inferno.testing.link_store import Ends
from inferno.testing.store_machine import StoreMachine, _Fickle
from inferno.testing.tiny import installed


def nothing_comes() -> PretendedLink:
    return PretendedLink(len(SIZES))


def stacked_store(tiers: BlockStore) -> BlockStore:
    """The same tiers beside a link over which nothing comes."""

    def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
        link = nothing_comes()
        link.num_groups = len(need.sizes)
        stacked = Stacked.of(tiers.build(need), (link, link), sends=False)
        return stacked, stacked

    return evolve(tiers, build=build)


class TestTiers(StoreTests):
    """They are as they are without a link."""

    store = "offload"
    max_examples = 5

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        return stacked_store(catalog.named(BlockStore, cls.store).item)


class TestHostTier(TestTiers):
    keeps_files = False


class TestDecodingEnd(LinkTests):
    """So is a link, whose other end has no tiers."""

    store = "disaggregated"

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        link, tiers = (catalog.named(BlockStore, name).item for name in (cls.store, "offload"))

        def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
            built = link.build(need)
            assert need.link is not None
            if need.link.role == "prefill":
                return built
            kept = tiers.build(evolve(need, link=None, host_limit=1 << 20))
            stacked = Stacked.of(kept, built, sends=False)
            return stacked, stacked

        return evolve(link, build=build)

    @pytest.fixture
    def links(self) -> tuple[Link, Link]:
        link = Link(role="prefill", url=f"shm://test-{secrets.token_hex(6)}", buffer=1 << 20)
        return link, evolve(link, role="decode")

    def test_what_another_request_is_about_to_load_stays(self, ends: Ends) -> None:
        """As without tiers, which have it afterwards."""
        ends.ask(KEYS[:1], [0b11], "a")
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        ends.here.index.fetch([(KEYS[0], 0b11)], "b")
        ends.here.wait("b")
        ends.here.index.release("a")
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        assert ends.here.bytes_at(0, 4) == ends.there.bytes_at(0, 3)
        assert not ends.serving.is_asked, "its memory may have another prompt's blocks by now"
        ends.here.index.release("b")
        assert ends.asked() == ([], [ends.named])
        stacked: Any = ends.here.index
        assert stacked.link_index.near(KEYS[0]) == 0 and ends.near(KEYS[0]) == [0b11]

    def test_what_was_loaded_is_in_the_tiers(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [0b11, 0b01])
        for place, key in enumerate(KEYS[:2]):
            ends.save(key, place)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert [ends.here.index.groups_of(key) for key in KEYS[:2]] == [0, 0], "it is kept unread"
        ends.here.mover.load([Placed(KEYS[0], (4, 5)), Placed(KEYS[1], (6, None))])
        assert [ends.here.index.groups_of(key) for key in KEYS[:2]] == [0b11, 0b01]
        ends.here.index.release("a")
        assert ends.near(*KEYS[:2]) == [0b11, 0b01]
        ends.here.index.fetch([(KEYS[0], 0b11)], "b")
        ends.here.wait("b")
        ends.here.mover.load([Placed(KEYS[0], (1, 2))])
        assert ends.here.bytes_at(0, 1) == ends.there.bytes_at(0, 0) == ends.here.bytes_at(0, 4)
        assert ends.here.bytes_at(1, 2) == ends.there.bytes_at(1, 0)

    def test_an_owner_waits_for_both(self, ends: Ends) -> None:
        ends.here.save(KEYS[3], 3, 3)
        ends.ask(KEYS[:1], [0b11])
        ends.here.index.fetch([(KEYS[3], 0b11)], "a")
        for _ in range(3):
            assert not ends.here.mover.poll(), "the link has not ended"
        ends.save(KEYS[0], 1)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(KEYS[0], KEYS[3]) == [0b11, 0b11]


def test_a_prefilling_end_saves_for_each_what_it_lacks() -> None:
    tiers = installed().named(BlockStore, "offload").item
    link = nothing_comes()
    need = StoreNeed(layout="{}", sizes=SIZES, host_limit=1 << 20)
    store = Stacked.of(tiers.build(need), (link, link), sends=True)
    filled = Filled((store, store))
    filled.save(KEYS[0], 3, 4)
    assert link.sent == 0 and store.needless(KEYS[0]) == 0b11
    store.begin("a", KEYS[:2])
    assert [store.needless(key) for key in KEYS[:2]] == [0, 0]
    saved = store.usage.saved_bytes
    filled.save(KEYS[0], 3, 4)
    assert link.sent == 2 and store.usage.saved_bytes == saved, "the tiers have it"
    filled.save(KEYS[1], 5, None)
    assert link.sent == 3 and store.usage.saved_bytes == saved + SIZES[0]
    assert [store.needless(key) for key in KEYS[:2]] == [0b11, 0b01]
    filled.save(KEYS[1], None, 6)
    store.begin("b", KEYS[:1])
    filled.fetch(KEYS[0])
    store.note(Placed(KEYS[0], (7, None)))
    filled.mover.load([Placed(KEYS[0], (7, None))])
    assert link.sent == 5 and store.needless(KEYS[0]) == 0b01, "what is loaded is sent"
    filled.mover.close()


# --- with a scheduler -----------------------------------------------------------------------------


class Recorded(StackedTiers):
    """Notes the contents of what is saved."""

    def save(self, saves: Sequence[Placed]) -> None:
        for placed in saves:
            self.here[1].record(placed)  # type: ignore[attr-defined]  # a pretended link
        super().save(saves)


class LinkedMachine(StoreMachine):
    """The same histories with a link beside the tiers."""

    sends: ClassVar[bool] = False
    moved: ClassVar[list[int]] = []
    """What came or was sent in each history."""
    drawn: ClassVar[list[int]] = []
    """The first tokens that came."""

    def open_store(self) -> NoStore:
        tiers = self.item
        state = len(self.runner.windows) if self.runner.has_states else -1

        def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
            link = PretendedLink(len(need.sizes), state)
            built = self.stacked(tiers.build(need), (link, link))
            self.link = link
            return built, built

        self.item = evolve(tiers, build=build)
        storing: Any = super().open_store()
        self.item = tiers
        given = self.groups, *self.built, storing.sizes
        store: Decoding | Prefilling
        if self.sends:
            store = Prefilling(*given, adapters={})
        else:
            terms = Link(role="decode", url="", min_tokens=1, min_uncached=1)
            store = Decoding(*given, terms=terms, vocab_size=VOCAB_SIZE)
        store.speeds = _Fickle(self.built[0].usage)
        return store

    def stacked(self, tiers: StoreHalves, link: StoreHalves) -> Recorded:
        return Recorded(*tiers, *link, self.sends)

    def teardown(self) -> Any:
        super().teardown()
        self.moved.append(self.link.sent + self.link.usage.loaded_bytes)
        self.drawn.append(self.link.drawn)


class SendingMachine(LinkedMachine):
    """Requests are those of other ends too."""

    sends = True

    @rule(prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12))
    def serve(self, prompt: list[int]) -> None:
        keys = list[bytes]()
        extend_keys(keys, prompt, BLOCK_SIZE)
        self.link.expect(prompt, keys)
        self.link.begin(self._ask(prompt, 1, 0, ""), keys)


@alike
@pytest.mark.parametrize("groups", GROUPS)
def test_right_content_whatever_comes(groups: str, tmp_path: Path) -> None:
    assert run_histories(LinkedMachine, GROUPS[groups], tmp_path) > 0, "nothing came"
    assert sum(LinkedMachine.drawn) > 0, "no first token came"


@alike
@pytest.mark.parametrize("groups", GROUPS)
def test_right_content_whatever_is_asked_for(groups: str, tmp_path: Path) -> None:
    assert run_histories(SendingMachine, GROUPS[groups], tmp_path) > 0, "nothing was sent"


def run_histories(
    machine: type[LinkedMachine], groups: Callable[[], list[CacheGroup]], folder: Path
) -> int:
    item = installed().named(BlockStore, "offload").item
    machine.moved.clear()
    machine.drawn.clear()
    folders = (folder / str(i) for i in range(1 << 30))
    run_state_machine_as_test(
        lambda: machine(item, groups, next(folders), TestTiers, []),  # type: ignore[arg-type]  # whatever makes one will do
        settings=settings(
            max_examples=15,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return sum(machine.moved)


def test_a_step_does_not_save_what_it_is_about_to_load(tmp_path: Path) -> None:
    item = installed().named(BlockStore, "offload").item
    machine = LinkedMachine(item, GROUPS["full"], tmp_path, TestTiers, [])
    machine._ask([0, 1, 1, 0, 1, 0, 0], 8, 0, "")
    store: Any = machine.store
    while not store._running:
        machine.step(1)
    [(row, sequence)] = store._running.items()
    keys = sequence.keys[: sequence.num_inserted]
    for loading in ([], [keys[0]]):
        store.drop(keys)
        store._saved[row] = 0
        store.saves, store.loads = [], [Placed(key, (0,)) for key in loading]
        store.save(sequence, len(keys))
        assert [placed.key for placed in store.saves] == keys[len(loading) :]
    store.loads = []
    store._loading = [sequence.request.id]
    store.index.fetch([], sequence.request.id)
    store.release(sequence.request.id)
    assert sequence.request.id in store.index._awaited, "the step needs what it holds"
    store.take_news()
    store.take_news()
    assert not store.index._awaited
    machine.drain()
    machine.teardown()
