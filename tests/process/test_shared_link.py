"""The contract of links, of which each end has three ranks: threads, on the wires of real ranks."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from tests.process.test_shared_store import FOLLOWERS, Follower, Stepping, Threads

from inferno.catalog import Catalog
from inferno.contracts import BlockStore, Link, Mover, Placed, StoreIndex, StoreNeed
from inferno.errors import EngineDeadError
from inferno.plan.addresses import address_of
from inferno.process.ranks.keeping_links import KeptLink
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.messages import Asked
from inferno.process.ranks.sharing_links import SharedLink
from inferno.process.ranks.wire import Wire
from inferno.testing import LinkTests
from inferno.testing.block_store import KEYS
from inferno.testing.link_store import BOTH, PROMPT, Ends, until

Ended = pytest.importorskip("inferno_disaggregated.client").Ended
RANKS = 1 + FOLLOWERS


class SteppingLink(Stepping, SharedLink):
    """The first rank's end, which sends the others what steps save and load."""


def shared_by_threads(own: BlockStore, *, late: bool = False) -> BlockStore:
    """Return a link of which each rank has an end. `late`: the first one computes steps as the last
    pipeline stage does, with none in flight."""

    def follower(rank: int, need: StoreNeed) -> tuple[Follower, Wire]:
        assert need.link is not None
        urls = need.link.url, *need.link.others
        url, *others = (address_of(each, 0, RANKS, rank) for each in urls)
        built = own.build(evolve(need, link=evolve(need.link, url=url, others=tuple(others))))
        here, there = socket.socketpair()
        kept = KeptLink.of(halves_of(built, late=late))
        return Follower(rank, kept, Wire(there)), Wire(here)

    def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
        built = own.build(need)
        pairs = [follower(rank, need) for rank in range(1, RANKS)]
        threads = Threads([each for each, _ in pairs], [wire for _, wire in pairs])
        shared = SteppingLink(threads, *halves_of(built, late=late))
        return shared, shared

    return evolve(own, build=build)


def halves_of(built: tuple[StoreIndex, Mover], *, late: bool) -> tuple[StoreIndex, Mover]:
    if not late:
        return built
    store = LateBlocks.of(built)
    return store, store


class TestSharedLink(LinkTests):
    store = "disaggregated"
    late = False

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        return shared_by_threads(catalog.named(BlockStore, "disaggregated").item, late=cls.late)

    @pytest.fixture
    def links(self) -> tuple[Link, Link]:
        link = Link(role="prefill", url=f"shm://test-{secrets.token_hex(6)}", buffer=1 << 20)
        return link, evolve(link, role="decode")

    @pytest.fixture
    def ends(self, item: BlockStore, links: tuple[Link, Link]) -> Iterator[Ends]:
        """Both ends, once every rank has met the other end's of its number: a prompt that one rank
        asks for before others can is computed here, and the prefilling end never begins it."""
        ends = Ends(item, *links)
        until(lambda: all(plugin_of(each).client.joined for each in here(ends)))
        yield ends
        ends.close()

    # What has come is near once all ranks have said so.
    test_parts_come_while_the_prompt_is_being_computed: Any = None

    def test_what_another_request_is_about_to_load_stays(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH], "a")
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        ends.here.index.fetch([(KEYS[0], BOTH)], "b")
        ends.here.wait("b")
        ends.here.index.release("a")
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        assert ends.here.bytes_at(0, 4) == ends.there.bytes_at(0, 3)
        ends.here.index.release("b")
        assert ends.near(KEYS[0]) == [0]
        until(lambda: not any(plugin_of(each).near(KEYS[0]) for each in here(ends)))

    def test_an_end_that_closes_ends_what_waits_for_it(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[0]))
        ends.there.mover.close()
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [BOTH, 0], "what had come is lost"
        assert not ends.link.ask(PROMPT, KEYS[:1], [BOTH])

    def test_what_one_rank_has_not_got_is_near_for_none(self, ends: Ends) -> None:
        ends.ask(KEYS[:3], [BOTH, BOTH, BOTH])
        for key in KEYS[:2]:
            ends.save(key, 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[1]))
        client = plugin_of(here(ends)[1]).client
        client.release(0)  # as if it had lost what comes
        ends.save(KEYS[2], 3)
        ends.serving.end(ends.named)
        client.news.put(Ended(0, "late"))
        ends.here.wait("a")
        assert ends.near(*KEYS[:3]) == [BOTH, BOTH, 0]
        assert ends.here.index.usage.fallbacks == {"rank": 1}

    def test_a_rank_that_gets_nothing_ends_it_for_all(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[0]))
        follower = plugin_of(here(ends)[2])
        follower._discard(follower._coming["a"])
        follower.client.news.put(Ended(0, "late"))
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [0, 0]
        assert ends.asked() == ([], [ends.named]), "others go on"
        ends.serving.end(ends.named, "it is no longer wanted")
        until(lambda: not any(plugin_of(each)._near for each in here(ends)))

    def test_a_prompt_that_fails_before_it_is_cut_short_has_failed(self, ends: Ends) -> None:
        """Its numbers may be none, whatever else has happened."""
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[0]))
        link: Any = ends.serving
        link._take_asked(Asked(1, [], [ends.named]))
        assert link.is_asked
        ends.serving.end(ends.named, "its numbers are none")
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [0, 0]
        assert not link.is_asked and not link._cut

    def test_a_rank_that_has_ended_ends_an_engine_that_only_this_rank_is_asked(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No prompt begins then, and it never rests if it is asked again and again."""

        def ended(threads: Threads) -> None:
            raise EngineDeadError("rank 1 was killed", "It is started anew.")

        with monkeypatch.context() as patch:
            patch.setattr(Threads, "take_told", ended)
            assert ends.serving.is_asked
            with pytest.raises(EngineDeadError):
                ends.serving.take_asked()

    def test_a_prompt_that_one_rank_was_not_asked_for_does_not_begin(self, ends: Ends) -> None:
        until(lambda: ends.link.ask(PROMPT, KEYS[:1], [BOTH]))
        ends.asked()
        [transfer] = plugin_of(ends.serving)._open.values()
        tell = Asked(1, [], [transfer.id])
        ends.here.index.release("a")
        link: Any = ends.serving
        prompt = evolve(PROMPT, id="b", name=b"b")
        link._asked["b"] = prompt
        link._take_asked(evolve(tell, prompts=["b"], unwanted=[]))
        assert not link._next(), "one of two followers"
        link._take_asked(evolve(tell, rank=1, prompts=["b"], unwanted=[]))
        assert not link._next(), "the same one"
        link._take_asked(evolve(tell, rank=1, unwanted=["b"]))
        assert not link._asked, "it was let go, and the others need not wait"

    def test_a_rank_holds_what_has_come_to_it_for_another_prompt(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH], "a")
        first = ends.named
        ends.ask(KEYS[:1], [BOTH], "b")
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[0]))
        follower = plugin_of(here(ends)[1])
        until(lambda: all(len(coming.parts) == 2 for coming in follower._coming.values()))
        follower._discard(follower._coming["a"])
        ends.serving.end(first)
        ends.here.wait("a")
        ends.here.index.release("b")
        assert ends.asked()[1] == [ends.named]
        assert ends.near(KEYS[0]) == [BOTH]
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        assert ends.here.bytes_at(0, 4) == ends.there.bytes_at(0, 3)


class TestLateSharedLink(TestSharedLink):
    late = True

    def test_what_a_step_in_flight_saves_for_another_prompt_is_saved_again(
        self, ends: Ends
    ) -> None:
        """Other ranks were sent that step before the second prompt began."""
        late, placed = getattr(ends.there.index, "index"), Placed(KEYS[0], (3, 3))  # noqa: B009
        ends.ask(KEYS[:1], [BOTH], "a")
        late.launched()
        ends.there.index.note(placed)
        assert late.groups_of(KEYS[0]) == BOTH
        ends.ask(KEYS[:1], [BOTH], "b")
        assert late.groups_of(KEYS[0]) == 0
        ends.there.index.note(placed)
        assert late.groups_of(KEYS[0]) == BOTH
        late.computed()
        assert late.groups_of(KEYS[0]) == BOTH and not late._owed

    def test_what_is_about_to_be_loaded_outlives_a_release_that_waits(self, ends: Ends) -> None:
        """Of another prompt, from which alone the block has come to this rank."""
        late = getattr(ends.link, "index")  # noqa: B009
        names = []
        for name in ("a", "b"):
            ends.ask(KEYS[:1], [BOTH], name)
            names.append(ends.named)
        ends.save(KEYS[0], 3)
        for name in names:
            ends.serving.end(name)
        ended = set[str]()
        while len(ended) < 2:
            ended |= set(ends.here.mover.poll())
            time.sleep(0.01)
        plugin_of(ends.link)._discard(plugin_of(ends.link)._coming["a"])
        late.launched()
        ends.here.index.release("b")
        assert ends.near(KEYS[0]) == [BOTH]
        ends.here.index.fetch([(KEYS[0], BOTH)], "a")
        late.computed()
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        assert ends.here.bytes_at(0, 4) == ends.there.bytes_at(0, 3)
        ends.here.index.release("a")
        assert ends.near(KEYS[0]) == [0]

    def test_an_id_that_comes_again_waits_for_no_prompt_that_is_released(self, ends: Ends) -> None:
        """A release is done after the steps in flight, and would be that of the second prompt."""
        late = getattr(ends.link, "index")  # noqa: B009
        ends.ask(KEYS[:1], [BOTH], "a")
        late.launched()
        ends.here.index.release("a")
        assert not ends.link.ask(PROMPT, KEYS[:1], [BOTH]), "it is computed here"
        late.computed()
        assert ends.asked()[1] == [ends.named]
        assert not late._unreleased
        ends.ask(KEYS[:1], [BOTH], "a")
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(KEYS[0]) == [BOTH]


def plugin_of(end: Any) -> Any:
    """A rank's end as the plugin has built it."""
    while hasattr(end, "index"):
        end = end.index
    return end


def here(ends: Ends) -> list[Any]:
    """The ends of all decoding ranks."""
    shared: Any = ends.link
    return [shared, *(follower.kept for follower in shared.others.followers)]


def came(ends: Ends, key: bytes) -> bool:
    """Whether a block has come to all ranks."""
    return all(plugin_of(each).near(key) == BOTH for each in here(ends))
