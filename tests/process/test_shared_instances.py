"""Several instances compute prompts for one, each of them of three ranks: threads, on the wires of
real ranks."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from attrs import evolve
from tests.process.test_shared_link import came, here, plugin_of, shared_by_threads

from inferno.catalog import load_catalog
from inferno.contracts import (
    BlockStore,
    Link,
    LinkedPrompt,
    LinkIndex,
    Placed,
    StoreNeed,
)
from inferno.testing.block_store import KEYS, SIZES, Filled
from inferno.testing.link_store import BOTH, PROMPT, Ends, until


class Elsewhere(Ends):
    """A decoding end, and two that compute prompts for it."""

    def __init__(self, item: BlockStore, *links: Link) -> None:
        first, second, decode = links
        super().__init__(item, first, decode)
        self.first = self.there
        self.second = Filled(item.build(StoreNeed(layout="{}", sizes=SIZES, link=second)))

    def is_asked(self, end: Filled, keys: Sequence[bytes]) -> None:
        """Wait until one of the two is asked for a prompt, and let it begin with it."""
        self.there, self.serving = end, cast(LinkIndex, end.index)
        prompts = list[LinkedPrompt]()

        def comes() -> bool:
            assert not self.here.mover.poll(), "it has ended"
            prompts.extend(self.serving.take_asked()[0] if self.serving.is_asked else ())
            return bool(prompts)

        until(comes)
        [prompt] = prompts
        assert prompt.token_ids == PROMPT.token_ids and prompt.salt == PROMPT.salt
        self.named = prompt.id
        self.serving.begin(self.named, keys)

    def close(self) -> None:
        self.here.mover.close()
        for each in (self.first, self.second):
            each.mover.close()


class TestSeveralInstances:
    """All ranks ask the same instance, and the next one for what has not come to all of them."""

    @pytest.fixture
    def ends(self) -> Iterator[Elsewhere]:
        name = f"shm://test-{secrets.token_hex(6)}"
        one = Link(role="prefill", url=f"{name}-a", buffer=1 << 20)
        other = evolve(one, url=f"{name}-b")
        own = load_catalog().named(BlockStore, "disaggregated").item
        item = shared_by_threads(own)
        ends = Elsewhere(item, one, other, evolve(one, role="decode", others=(other.url,)))
        instances = [each for end in here(ends) for each in plugin_of(end).instances]
        until(lambda: all(each.client.joined for each in instances))
        yield ends
        ends.close()

    @pytest.mark.parametrize("rank", [0, 2])
    def test_the_rest_comes_from_another_if_one_rank_is_cut_off(
        self, ends: Elsewhere, rank: int
    ) -> None:
        ends.ask(KEYS[:3], [BOTH, 0b01, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[0]))
        client = plugin_of(here(ends)[rank]).client
        client._lose("lost")
        client._greet()  # another session
        ends.first.index.drop(KEYS[1])
        if rank:
            until(lambda: ends.serving.is_asked)  # a follower has said so
        assert ends.asked() == ([], [ends.named])
        ends.serving.end(ends.named, "it is no longer wanted")
        ends.is_asked(ends.second, KEYS[:3])
        lacking = [BOTH & ~ends.second.index.groups_of(key) for key in KEYS[:3]]
        assert lacking == [0, 0b01, BOTH], "what has come to all is not asked for again"
        for key in KEYS[1:3]:
            ends.save(key, 4)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(*KEYS[:3]) == [BOTH, 0b01, BOTH]
        places = [Placed(KEYS[0], (4, 5)), Placed(KEYS[1], (6, None)), Placed(KEYS[2], (7, 2))]
        ends.here.mover.load(places)
        assert ends.here.bytes_at(0, 4) == ends.first.bytes_at(0, 3)
        assert ends.here.bytes_at(1, 2) == ends.second.bytes_at(1, 4)
        usage = ends.here.index.usage
        assert usage.fallbacks == {}
        first, second = usage.instances.values()
        assert first.failures == {"rank" if rank else "lost": 1} and not second.failures
        ends.here.index.release("a")
        until(lambda: not any(plugin_of(each)._near for each in here(ends)))

    def test_a_prompt_of_which_one_rank_gets_nothing_comes_whole_from_another(
        self, ends: Elsewhere
    ) -> None:
        follower = plugin_of(here(ends)[1])
        follower.instances[0].client.joined = False
        assert ends.link.ask(PROMPT, KEYS[:2], [BOTH, BOTH]) == 1
        ends.is_asked(ends.second, KEYS[:2])
        follower.instances[0].client.joined = True
        for key in KEYS[:2]:
            ends.save(key, 3)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [BOTH, BOTH]
        assert ends.here.index.usage.fallbacks == {}

    def test_a_prompt_that_fails_comes_whole_from_another(self, ends: Elsewhere) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        ends.serving.end(ends.named, "its numbers are none")
        ends.is_asked(ends.second, KEYS[:2])
        for key in KEYS[:2]:
            ends.save(key, 5)
        ends.serving.end(ends.named)
        ends.here.wait("a")
        ends.here.mover.load([Placed(KEYS[0], (4, 5))])
        assert ends.here.bytes_at(0, 4) == ends.second.bytes_at(0, 5)

    def test_where_none_is_left_the_rest_is_computed_here(self, ends: Elsewhere) -> None:
        ends.ask(KEYS[:2], [BOTH, BOTH])
        ends.save(KEYS[0], 3)
        until(lambda: not ends.here.mover.poll() and came(ends, KEYS[0]))
        ends.first.mover.close()
        ends.is_asked(ends.second, KEYS[:2])
        ends.second.mover.close()
        ends.here.wait("a")
        assert ends.near(*KEYS[:2]) == [BOTH, 0]
        causes = ends.here.index.usage.fallbacks
        assert causes in ({"lost": 1}, {"rank": 1}), "as the first rank loses it, or another before"
