"""The contract of links, for a decoding end of three ranks that has tiers too. They are threads, on
the wires of real ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve
from tests.process import test_late_store
from tests.process.test_shared_link import RANKS, plugin_of, shared_by_threads
from tests.process.test_shared_store import Follower, Stepped, Threads
from tests.stores import test_stacked

from inferno.catalog import Catalog
from inferno.contracts import BlockStore, Link, Mover, Placed, StoreIndex, StoreNeed
from inferno.plan.addresses import address_of
from inferno.process.ranks.keeping_links import KeptBoth
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.sharing_blocks import SharedStore
from inferno.process.ranks.sharing_links import SharedLink
from inferno.process.ranks.wire import Wire
from inferno.stores.stacked import Stacked, StackedTiers, StoreHalves
from inferno.testing import alike
from inferno.testing.block_store import KEYS
from inferno.testing.link_store import Ends, until

pytest.importorskip("inferno_disaggregated")
pytest.importorskip("inferno_offload")


@define(eq=False)
class SteppingBoth(Stepped, StackedTiers):
    """The first rank's store of two, which sends the others what steps save and load."""

    @property
    def others(self) -> Any:
        shared: Any = self.tiers_index
        return shared.others


def of_ranks(tiers: BlockStore, link: BlockStore, *, late: bool) -> BlockStore:
    """Return a link whose decoding end has tiers on each rank."""

    def halves(need: StoreNeed, rank: int) -> tuple[Sequence[StoreHalves], Sequence[StoreHalves]]:
        """A rank's stores as they are told of steps, and as they are."""
        assert need.link is not None
        at = evolve(need.link, url=address_of(need.link.url, 0, RANKS, rank))
        kept = evolve(need, link=None, host_limit=1 << 20)
        here = [tiers.build(kept), link.build(evolve(need, link=at))]
        told: list[StoreHalves] = (
            [(store, store) for store in map(LateBlocks.of, here)] if late else here
        )
        return told, here

    def follower(rank: int, need: StoreNeed) -> tuple[Follower, Wire]:
        (kept, linked), own = halves(need, rank)
        one = Stacked.of(kept, linked, sends=False, here=own)
        here, there = socket.socketpair()
        return Follower(rank, KeptBoth.of((one, one), kept, linked), Wire(there)), Wire(here)

    def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
        assert need.link is not None
        if need.link.role == "prefill":
            return shared_by_threads(link, late=late).build(need)
        told, own = halves(need, 0)
        pairs = [follower(rank, need) for rank in range(1, RANKS)]
        threads = Threads([each for each, _ in pairs], [wire for _, wire in pairs])
        kept, linked = SharedStore.of(threads, told[0]), SharedLink.of(threads, told[1])
        kept.join(linked)
        stacked = SteppingBoth(kept, kept, linked, linked, False, (own[0][0], own[1][0]))
        return stacked, stacked

    return evolve(link, build=build)


class TestDecodingRanks(test_stacked.TestDecodingEnd):
    late = False

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        tiers, link = (catalog.named(BlockStore, name).item for name in ("offload", cls.store))
        return of_ranks(tiers, link, late=cls.late)

    @pytest.fixture
    def ends(self, item: BlockStore, links: tuple[Link, Link]) -> Iterator[Ends]:
        ends = Ends(item, *links)
        until(lambda: all(each.client.joined for each in link_ends(ends)))
        yield ends
        ends.close()

    # What has come is near once all ranks have said so, and what is kept once it is fetched.
    test_parts_come_while_the_prompt_is_being_computed: Any = None
    test_an_end_that_closes_ends_what_waits_for_it: Any = None
    test_what_another_request_is_about_to_load_stays: Any = None
    test_what_was_loaded_is_in_the_tiers: Any = None
    test_an_owner_waits_for_both: Any = None

    def test_what_was_loaded_is_kept_by_all_ranks(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [0b11])
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.here.index.groups_of(KEYS[0]) == 0, "it is kept unread"
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        ends.here.index.release("a")
        assert ends.here.index.groups_of(KEYS[0]) == 0b11 and ends.near(KEYS[0]) == [0]
        assert all(end.near(KEYS[0]) == 0b11 for end in tier_ends(ends))
        ends.here.index.fetch([(KEYS[0], 0b11)], "b")
        ends.here.wait("b")
        assert ends.near(KEYS[0]) == [0b11]
        ends.here.mover.load([Placed(KEYS[0], (1, 2))])
        assert ends.here.bytes_at(0, 1) == ends.there.bytes_at(0, 3)

    def test_what_one_rank_s_tiers_have_lost_is_no_longer_promised_by_them(
        self, ends: Ends
    ) -> None:
        self.test_what_was_loaded_is_kept_by_all_ranks(ends)
        ends.here.index.release("b")
        tier_ends(ends)[2].drop(KEYS[0])
        ends.here.index.fetch([(KEYS[0], 0b11)], "c")
        ends.here.wait("c")
        assert ends.near(KEYS[0]) == [0] and ends.here.index.groups_of(KEYS[0]) == 0
        ends.ask(KEYS[:1], [0b01], "d")
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named)
        ends.here.wait("d")
        assert ends.near(KEYS[0]) == [0b01]
        placed = Placed(KEYS[0], (7, None))
        ends.here.index.note(placed)
        ends.here.mover.load([placed])
        assert ends.here.bytes_at(0, 7) == ends.there.bytes_at(0, 3)
        assert ends.here.index.groups_of(KEYS[0]) == 0b01, "all have it again"

    def test_an_answer_that_the_other_store_hears_is_told_soon(self, ends: Ends) -> None:
        """Whoever sleeps until then is woken."""
        both: Any = ends.here.index
        both.tiers_index.fetch([(KEYS[0], 0b11)], "a")
        [fetch] = both.tiers_index._fetches.values()
        until(lambda: both.link_index._hear() or not fetch.left)
        selector = both.tiers_index._waits
        assert both.tiers_index._bell[1] in [key.fileobj for key, _ in selector.select(1.0)]
        assert both.tiers_index.poll() == ["a"]
        assert not both.tiers_index._fetches and not selector.select(0.0)


class TestLateDecodingRanks(TestDecodingRanks):
    late = True


class Lates(list[LateBlocks]):
    """Both stores of a rank (`StagedMachine.shared`)."""

    @property
    def late(self) -> Lates:
        return self

    def launched(self) -> None:
        for each in self:
            each.launched()

    def computed(self) -> None:
        for each in self:
            each.computed()


class StagedLinkedMachine(test_late_store.StagedMachine, test_stacked.LinkedMachine):
    """Histories of the last stage's first rank, with a link beside its tiers."""

    shared: Any = None

    def stacked(self, tiers: StoreHalves, link: StoreHalves) -> test_stacked.Recorded:
        self.shared = Lates(map(LateBlocks.of, (tiers, link)))
        kept, linked = self.shared
        none = test_late_store.NoOthers()
        one, other = SharedStore.of(none, (kept, kept)), SharedLink.of(none, (linked, linked))
        one.join(other)
        here = tiers[0], link[0]
        return test_stacked.Recorded(one, one, other, other, self.sends, here)


class StagedSendingMachine(StagedLinkedMachine, test_stacked.SendingMachine):
    """The same of one that computes prompts for others."""


@alike
@pytest.mark.parametrize("groups", test_late_store.GROUPS)
@pytest.mark.parametrize("machine", [StagedLinkedMachine, StagedSendingMachine])
def test_right_content_with_steps_in_flight(
    machine: type[StagedLinkedMachine], groups: str, tmp_path: Path
) -> None:
    made = test_late_store.GROUPS[groups]
    assert test_stacked.run_histories(machine, made, tmp_path) > 0, "nothing came or was sent"


def link_ends(ends: Ends) -> list[Any]:
    """Those of all decoding ranks, as the plugin has built them."""
    both: Any = ends.here.index
    followers = both.others.followers
    return [plugin_of(each) for each in (both.link_index, *(f.kept.link for f in followers))]


def tier_ends(ends: Ends) -> list[Any]:
    both: Any = ends.here.index
    followers = both.others.followers
    return [plugin_of(each) for each in (both.tiers_index, *(f.kept.tiers for f in followers))]
