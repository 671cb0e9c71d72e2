"""Tests of every store that links two instances: what comes is what was saved, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from select import select
from typing import ClassVar, cast

import pytest
from attrs import evolve

from inferno.catalog import Catalog
from inferno.contracts import BlockStore, Link, LinkedPrompt, LinkIndex, Placed, StoreNeed
from inferno.testing.block_store import KEYS, SIZES, Filled
from inferno.testing.installed import Installed

PROMPT = LinkedPrompt(id="a", token_ids=tuple(range(100)), salt="s", adapter="digest")
BOTH = 0b11


class Ends:
    """Both ends of a link, each with a cache of its own."""

    def __init__(self, item: BlockStore, prefill: Link, decode: Link, layout: str = "{}") -> None:
        need = StoreNeed(layout="{}", sizes=SIZES)
        self.there = Filled(item.build(evolve(need, link=prefill)))
        self.here = Filled(item.build(evolve(need, link=decode, layout=layout)))
        for group in self.here.groups:
            for piece in group:
                piece.zero_()
        self.link = cast(LinkIndex, self.here.index)
        self.serving = cast(LinkIndex, self.there.index)

    def ask(
        self,
        keys: Sequence[bytes],
        wanted: Sequence[int],
        name: str = "a",
        drawing: bytes = b"",
    ) -> None:
        """Ask for parts of a prompt, and let the other end begin with it."""
        prompt = evolve(PROMPT, id=name, drawing=drawing)
        until(lambda: self.link.ask(prompt, keys, wanted))
        self.here.index.usage.fallbacks.clear()  # of before they knew each other
        prompts, unwanted = self.asked()
        assert [evolve(each, id=name, name=b"") for each in prompts] == [prompt] and not unwanted
        self.named = prompts[0].id
        self.serving.begin(self.named, keys)

    def asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        """Wait until the other end has been asked for something."""
        descriptor = self.there.mover.fileno()
        assert descriptor is not None
        for _ in range(200):
            if self.serving.is_asked:
                return self.serving.take_asked()
            select([descriptor], [], [], 0.05)
        raise AssertionError("it is never asked")

    def save(self, key: bytes, place: int) -> None:
        """Save what the prefilling end says it needs of a block."""
        lacking = BOTH & ~self.there.index.groups_of(key)
        parts = tuple(place if lacking >> group & 1 else None for group in range(2))
        if lacking:
            self.there.save(key, *parts)

    def near(self, *keys: bytes) -> list[int]:
        return [self.here.index.near(key) for key in keys]

    def close(self) -> None:
        self.here.mover.close()
        self.there.mover.close()


class LinkTests(Installed):
    """Set `store` to its registered name, and override `links`."""

    store: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        return catalog.named(BlockStore, cls.store).item

    @pytest.fixture
    def links(self) -> tuple[Link, Link]:
        """A prefilling and a decoding end that find each other."""
        raise NotImplementedError

    @pytest.fixture
    def ends(self, item: BlockStore, links: tuple[Link, Link]) -> Iterator[Ends]:
        ends = Ends(item, *links)
        yield ends
        ends.close()

    def test_what_comes_is_what_was_saved(self, ends: Ends) -> None:
        ends.ask(KEYS[:3], [BOTH, 0b01, BOTH])
        for place, key in enumerate(KEYS[:3]):
            ends.save(key, place)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(*KEYS[:4]) == [BOTH, 0b01, BOTH, 0]
        places = [Placed(KEYS[0], (4, 5)), Placed(KEYS[1], (6, None)), Placed(KEYS[2], (7, 2))]
        ends.here.mover.load(places)
        for there, placed in enumerate(places):
            for group, here in enumerate(placed.places):
                if here is not None:
                    saved = ends.there.bytes_at(group, there)
                    assert ends.here.bytes_at(group, here) == saved
        assert not any(ends.here.bytes_at(1, 6)), "a part that was not asked for is written"
        assert ends.here.index.usage.linked_bytes == 3 * SIZES[0] + 2 * SIZES[1]

    def test_parts_come_while_the_prompt_is_being_computed(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and ends.near(KEYS[0]) == [BOTH])
        ends.save(KEYS[1], 4)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [BOTH, BOTH]

    def test_an_end_that_comes_before_the_last_save_waits_for_it(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH])
        placed = Placed(KEYS[0], (3, 3))
        ends.there.index.note(placed)
        ends.serving.end(ends.named)
        assert not ends.here.mover.poll()
        ends.there.mover.save([placed])
        ends.here.wait("a")
        assert ends.near(KEYS[0]) == [BOTH]

    def test_the_first_token_comes_before_the_last_blocks(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH], drawing=b"with a seed")
        placed = Placed(KEYS[0], (3, 3))
        ends.there.index.note(placed)
        ends.serving.end(ends.named, token_id=7)
        told = list[tuple[str, int]]()

        def comes() -> bool:
            assert not ends.here.mover.poll()
            told.extend(ends.link.take_first_tokens())
            return bool(told)

        until(comes)
        assert told == [("a", 7)]
        ends.there.mover.save([placed])
        ends.here.wait("a")
        assert ends.near(KEYS[0]) == [BOTH] and not ends.link.take_first_tokens()

    def test_only_what_is_wanted_need_be_saved(self, ends: Ends) -> None:
        assert ends.there.index.groups_of(KEYS[0]) == BOTH
        ends.ask(KEYS[:2], [0b10, 0])
        assert [ends.there.index.groups_of(key) for key in KEYS[:2]] == [0b01, BOTH]
        ends.save(KEYS[0], 1)
        assert ends.there.index.groups_of(KEYS[0]) == BOTH

    def test_saving_what_nobody_wants_sends_nothing(self, ends: Ends) -> None:
        """Tiers that are told of the same saves may lack it."""
        ends.ask(KEYS[:1], [0b01])
        ends.there.save(KEYS[0], 3, 4)
        ends.there.save(KEYS[1], 5, 6)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [0b01, 0]

    def test_a_prompt_that_fails_leaves_nothing_near(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named, "its numbers are none")
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [0, 0]
        assert sum(ends.here.index.usage.fallbacks.values()) == 1
        assert ends.there.index.groups_of(KEYS[1]) == BOTH, "it is still wanted"

    def test_what_is_released_is_wanted_no_more(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        ends.here.index.release("a")
        assert ends.asked() == ([], [ends.named])
        ends.serving.end(ends.named, "dropped")
        assert [ends.there.index.groups_of(key) for key in KEYS[:2]] == [BOTH, BOTH]
        ends.here.mover.poll()
        assert ends.near(*KEYS[:2]) == [0, 0]

    def test_two_prompts_share_a_block(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH], "a")
        first = ends.named
        ends.ask(KEYS[:1], [BOTH], "b")
        ends.save(KEYS[0], 3)
        ends.serving.end(first)
        ends.serving.end(ends.named)
        ended = set[str]()
        while len(ended) < 2:
            ended |= set(ends.here.mover.poll())
            time.sleep(0.01)
        ends.here.index.release("a")
        assert ends.near(KEYS[0]) == [BOTH], "the other one needs it"
        ends.here.index.release("b")
        assert ends.near(KEYS[0]) == [0]

    def test_what_another_request_is_about_to_load_stays(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH], "a")
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and ends.near(KEYS[0]) == [BOTH])
        ends.here.index.fetch([(KEYS[0], BOTH)], "b")
        ends.here.wait("b")
        ends.here.index.release("a")
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        assert ends.here.bytes_at(0, 4) == ends.there.bytes_at(0, 3)
        assert not ends.serving.is_asked, "its memory may have another prompt's blocks by now"
        ends.here.index.release("b")
        assert ends.near(KEYS[0]) == [0] and ends.asked() == ([], [ends.named])

    def test_a_dropped_block_is_not_waited_for(self, ends: Ends) -> None:
        ends.ask(KEYS[:1], [BOTH])
        ends.there.index.note(Placed(KEYS[0], (3, 3)))
        ends.serving.end(ends.named)
        ends.there.index.drop(KEYS[0])
        ends.here.wait("a")
        assert ends.near(KEYS[0]) == [0]

    def test_an_end_that_closes_ends_what_waits_for_it(self, ends: Ends) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and ends.near(KEYS[0]) == [BOTH])
        ends.there.mover.close()
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [BOTH, 0], "what had come is lost"
        assert not ends.link.ask(PROMPT, KEYS[:1], [BOTH])

    def test_another_layout_gets_nothing(self, item: BlockStore, links: tuple[Link, Link]) -> None:
        ends = Ends(item, *links, layout='{"dtype": "another"}')
        for _ in range(20):
            assert not ends.link.ask(PROMPT, KEYS[:1], [BOTH])
            time.sleep(0.02)
        assert not ends.serving.is_asked
        ends.close()

    def test_without_another_end_nothing_is_sent_out(
        self, item: BlockStore, links: tuple[Link, Link]
    ) -> None:
        alone = Filled(item.build(StoreNeed(layout="{}", sizes=SIZES, link=links[1])))
        assert not cast(LinkIndex, alone.index).ask(PROMPT, KEYS[:1], [BOTH])
        assert sum(alone.index.usage.fallbacks.values()) == 1
        alone.mover.close()


def until(what: Callable[[], object]) -> None:
    """Wait for something."""
    for _ in range(1000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it never comes")
