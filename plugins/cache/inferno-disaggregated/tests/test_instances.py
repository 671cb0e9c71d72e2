"""Several instances compute prompts for one: which is asked, and what follows if it fails."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from attrs import evolve

from inferno.contracts import Link, LinkedPrompt, Placed, StoreNeed
from inferno.errors import OptionError
from inferno_disaggregated.client import Asked, Came, Ended, News
from inferno_disaggregated.decoding import Decoding
from inferno_disaggregated.instances import Instance
from inferno_disaggregated.mailbox import Mailbox
from inferno_disaggregated.prefilling import Prefilling
from inferno_disaggregated.store import build

KEYS = [bytes([i]) * 16 for i in range(12)]
BOTH = 0b11
SIZES = (2, 3)


class StandIn:
    """Stands in for a client: records the prompts that it is to send. No instance is connected."""

    def __init__(self, url: str) -> None:
        self.url, self.joined = url, True
        self.asked, self.released = list[Asked](), list[int]()

    def ask(self, asked: Asked) -> None:
        self.asked.append(asked)

    def release(self, transfer: int) -> None:
        self.released.append(transfer)

    def close(self) -> None:
        self.joined = False


class End:
    """A decoding end with two instances."""

    def __init__(self) -> None:
        link = Link(role="decode", url="shm://a", others=("shm://b",))
        self.a, self.b = StandIn("shm://a"), StandIn("shm://b")
        self.news = Mailbox[News]()
        instances = [Instance((cast(Any, each),)) for each in (self.a, self.b)]
        need = StoreNeed(layout="{}", sizes=SIZES, link=link)
        self.index = Decoding(need, link, instances, self.news)
        self.cache = [torch.zeros(4, size, dtype=torch.uint8) for size in SIZES]
        self.index.register([[each] for each in self.cache])

    def ask(self, owner: str, keys: list[bytes]) -> StandIn:
        """Ask for all of a prompt. Returns the client that was asked."""
        before = len(self.a.asked)
        prompt = LinkedPrompt(id=owner, token_ids=(*range(10 * len(keys)),))
        assert self.index.ask(prompt, keys, [BOTH] * len(keys))
        return self.a if len(self.a.asked) > before else self.b

    def comes(self, number: int, indices: list[int]) -> None:
        for group, size in enumerate(SIZES):
            rows = [np.full(size, 10 * group + i, np.uint8) for i in indices]
            self.news.put(Came(number, group, indices, np.stack(rows)))

    def ends(self, number: int, cause: str = "") -> list[str]:
        self.news.put(Ended(number, cause))
        return [*self.index.poll()]

    def near(self, *keys: bytes) -> list[int]:
        return [self.index.near(key) for key in keys]


@pytest.fixture
def end() -> End:
    return End()


def test_the_one_with_the_least_to_compute_is_asked(end: End) -> None:
    assert end.ask("long", KEYS[:6]) is end.a
    assert end.ask("short", KEYS[6:8]) is end.b
    assert end.ask("next", KEYS[8:10]) is end.b, "20 tokens wait there, and 60 at the other"
    assert end.ends(0) == ["long"]
    assert end.ask("last", KEYS[10:]) is end.a
    instances = end.index.usage.instances
    assert [(i.prompts, i.waiting) for i in instances.values()] == [(2, 1), (2, 2)]


def test_the_one_that_was_asked_for_the_longest_prefix_is_asked(end: End) -> None:
    assert end.ask("0", KEYS[:4]) is end.a and end.ends(0) == ["0"]
    assert end.ask("1", KEYS[4:8]) is end.b and end.ends(1) == ["1"]
    for turn in range(2):
        assert end.ask(f"a{turn}", [*KEYS[:4], KEYS[8 + turn]]) is end.a
        assert end.ends(2 + 2 * turn) == [f"a{turn}"]
        assert end.ask(f"b{turn}", [*KEYS[4:8], KEYS[8 + turn]]) is end.b
        assert end.ends(3 + 2 * turn) == [f"b{turn}"]
    assert end.ask("lost", KEYS[:4]) is end.a and end.ends(6, "lost") == []
    end.index.release("lost")
    assert end.ask("b", [*KEYS[:4], KEYS[11]]) is end.b, "the other may have nothing now"


def test_the_rest_of_a_prompt_comes_from_another_instance(end: End) -> None:
    assert end.ask("0", KEYS[:3]) is end.a
    end.comes(0, [0])
    assert end.ends(0, "lost") == []
    [rest] = end.b.asked
    assert rest.message.wanted == [0, BOTH, BOTH]
    assert rest.deadline == end.a.asked[0].deadline
    end.comes(0, [1, 2])
    assert end.ends(0) == ["0"] and end.near(*KEYS[:4]) == [BOTH, BOTH, BOTH, 0]
    end.index.load([Placed(key, (place, place)) for place, key in enumerate(KEYS[:3])])
    assert [each[:3, 0].tolist() for each in end.cache] == [[0, 1, 2], [10, 11, 12]]
    usage = end.index.usage
    assert usage.fallbacks == {} and usage.linked_prompts == 1
    assert [i.failures for i in usage.instances.values()] == [{"lost": 1}, {}]
    end.index.release("0")
    assert end.near(*KEYS[:3]) == [0, 0, 0] and end.a.released == end.b.released == [0]


@pytest.mark.parametrize("cause", ["full", "refused", "lost"])
def test_a_prompt_that_nobody_takes_is_computed_here(end: End, cause: str) -> None:
    end.ask("0", KEYS[:3])
    end.comes(0, [0])
    assert end.ends(0, "full") == [] and end.ends(0, cause) == ["0"]
    assert end.near(*KEYS[:2]) == [BOTH, 0] and end.index.usage.fallbacks == {cause: 1}


def test_a_prompt_that_fails_comes_whole_from_another_instance(end: End) -> None:
    """Some of what has come may be wrong, and the instance may fail with every prompt."""
    assert end.ask("0", KEYS[:2]) is end.a
    end.comes(0, [0])
    assert end.ends(0, "failed") == [] and end.near(KEYS[0]) == [0]
    [again] = end.b.asked
    assert again.message.wanted == [BOTH, BOTH]
    end.comes(0, [0, 1])
    assert end.ends(0) == ["0"] and end.near(*KEYS[:2]) == [BOTH, BOTH]
    assert end.index.usage.fallbacks == {}
    end.index.release("0")
    assert end.ask("1", KEYS[:2]) is end.b
    end.comes(1, [0])
    assert end.ends(1, "failed") == [] and end.ends(1, "failed") == ["1"]
    assert end.near(KEYS[0]) == [0] and end.index.usage.fallbacks == {"failed": 1}


@pytest.mark.parametrize("cause", ["late", "short"])
def test_no_other_instance_is_asked_where_it_could_not_help(end: End, cause: str) -> None:
    end.ask("0", KEYS[:3])
    assert end.ends(0, cause) == ["0"] and not end.b.asked
    assert end.index.usage.fallbacks == {cause: 1}


def test_one_that_is_not_connected_is_not_asked(end: End) -> None:
    end.a.joined = False
    assert end.ask("0", KEYS[:1]) is end.b
    assert [i.connected for i in end.index.usage.instances.values()] == [False, True]
    end.b.joined = False
    prompt = LinkedPrompt(id="1", token_ids=(1, 2))
    assert not end.index.ask(prompt, KEYS[:1], [BOTH])
    assert end.index.usage.fallbacks == {"not connected": 1}
    assert end.ends(0, "lost") == ["0"]


def test_an_instance_that_was_away_has_no_cached_blocks(end: End) -> None:
    assert end.ask("0", KEYS[:4]) is end.a and end.ends(0) == ["0"]
    end.a.joined = False
    end.index.poll()
    end.a.joined = True
    assert end.ask("1", KEYS[:4]) is end.b, "it may have started anew"


NAMED = LinkedPrompt(id="0", token_ids=(*range(30),), name=bytes(16))


def test_of_several_ranks_the_first_one_says_when_another_instance_is_asked(end: End) -> None:
    assert end.index.ask(NAMED, KEYS[:3], [BOTH] * 3) == 1
    end.comes(0, [0, 1])
    assert end.ends(0, "lost") == ["0"] and not end.b.asked
    assert end.index.ask(NAMED, KEYS[:3], [0, BOTH, BOTH]) == 2, "another rank lacks the second"
    [rest] = end.b.asked
    assert rest.message.wanted == [0, BOTH, BOTH] and rest.message.name == NAMED.name
    assert rest.deadline == end.a.asked[0].deadline
    end.comes(1, [1, 2])
    assert end.ends(1, "lost") == ["0"] and end.near(*KEYS[:3]) == [BOTH] * 3
    assert end.index.usage.fallbacks == {}
    assert end.index.ask(NAMED, KEYS[:3], [0, 0, BOTH]) == 0, "none is left"
    assert end.index.usage.fallbacks == {"lost": 1} and end.index.usage.linked_prompts == 1
    end.index.release("0")
    assert end.near(*KEYS[:3]) == [0, 0, 0]
    assert 0 in end.a.released and end.b.released == [1]


def test_other_ranks_ask_where_the_first_one_does(end: End) -> None:
    followed = evolve(NAMED, token_ids=(), instance=2)
    assert end.index.ask(followed, KEYS[:2], [BOTH] * 2) == 2 and not end.a.asked
    end.index.release("0")
    end.b.joined = False
    assert end.index.ask(followed, KEYS[:2], [BOTH] * 2) == 0 and not end.a.asked


def test_what_one_rank_gets_nothing_of_is_given_up_by_all(end: End) -> None:
    end.index.ask(NAMED, KEYS[:2], [BOTH] * 2)
    end.comes(0, [0])
    end.index.poll()
    end.news.put(Ended(0, ""))
    assert end.index.ask(NAMED, KEYS[:2], [BOTH] * 2) == 2
    assert end.a.released == [0] and end.near(KEYS[0]) == [0]
    assert not end.index.poll(), "it is asked for again"
    assert [i.failures for i in end.index.usage.instances.values()] == [{"rank": 1}, {}]


def test_an_ask_that_was_held_before_is_not_named_for_the_next(end: End) -> None:
    end.index.ask(NAMED, KEYS[:2], [BOTH] * 2)
    end.comes(0, [0])
    assert end.ends(0, "lost") == ["0"]
    end.index.fetch([(KEYS[0], BOTH)], "0")
    assert end.index.ask(NAMED, KEYS[:2], [0, BOTH]) == 2
    assert not end.index.poll() and end.near(KEYS[0]) == [BOTH]


@pytest.mark.parametrize("cause", ["late", "short"])
def test_ranks_ask_no_other_instance_where_it_could_not_help(end: End, cause: str) -> None:
    end.index.ask(NAMED, KEYS[:3], [BOTH] * 3)
    end.ends(0, cause)
    assert end.index.ask(NAMED, KEYS[:3], [BOTH] * 3) == 0 and not end.b.asked
    assert end.index.usage.fallbacks == {cause: 1}


def test_a_rank_of_several_machines_is_found_at_whichever_host_it_is(tmp_path: Path) -> None:
    """No machine has 203.0.113.1."""
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"tcp://203.0.113.1+127.0.0.1:{port}"
    link = Link(role="prefill", url=url, token_file=token)
    need = StoreNeed(layout="{}", sizes=SIZES, link=link)
    there, _ = build(need)
    here, _ = build(evolve(need, link=evolve(link, role="decode")))
    assert isinstance(here, Decoding) and isinstance(there, Prefilling)
    [instance] = here.instances
    end = time.monotonic() + 10
    while not instance.client.joined:
        assert time.monotonic() < end, "they do not meet"
        time.sleep(0.01)
    assert instance.client.url == f"tcp://127.0.0.1:{port}" and len(instance.clients) == 2
    here.close()
    there.close()
    elsewhere = evolve(link, url="tcp://203.0.113.1+203.0.113.2:7000")
    with pytest.raises(OptionError, match="are all addresses of other machines"):
        build(evolve(need, link=elsewhere))
