"""Prefill and decode apart, each with several ranks: every rank pulls its share from the rank of
its number, and the tokens are those of one process, whatever happens on the way."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any

import pytest
from tests.stores.test_apart import (
    GREEDY,
    PROMPTS,
    SEEDED,
    SHORT,
    ask,
    counted,
    run,
    tcp_url,
    token_file,
    wait_for,
)
from tests.stores.test_stored_caches import CASES, toy_of
from tests.stores.test_stored_ranks import load

from inferno.core.engine import Engine
from inferno.errors import InfernoError
from inferno.process.ranks.keeping_links import KeptLink
from inferno.process.ranks.sharing_links import SharedLink
from inferno.request.requests import Request
from inferno.testing import alike

plugin = pytest.importorskip("inferno_disaggregated.client")
BOTH = ("pd_token_file", "pd_buffer")


@pytest.fixture
def url() -> str:
    return f"shm://test-{secrets.token_hex(6)}"


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[KeptLink]:
    """The followers' ends, in the order in which they were opened."""
    opened, of = list[KeptLink](), KeptLink.of

    def kept(built: Any) -> Any:
        store = of(built)
        assert isinstance(store, KeptLink)
        opened.append(store)
        return store

    monkeypatch.setattr(KeptLink, "of", kept)
    return opened


class Prefiller:
    """An engine of several ranks that computes prompts for others, in a thread."""

    def __init__(self, ref: str, url: str, **options: Any) -> None:
        self.engine = load(ref, prefill_for=url, **options)
        self.pauses = self._ends = False
        self.error: InfernoError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ends:
                if self.pauses:
                    time.sleep(0.01)
                elif self.engine.busy:
                    assert self.engine.step() == [], "the other end's outputs leave the engine"
                    self.engine.check()
                else:
                    assert (descriptor := self.engine.listens) is not None
                    select([descriptor], [], [], 0.05)
                    self.engine.rest()
        except InfernoError as error:
            self.error = error

    @property
    def link(self) -> Any:
        return link_of(self.engine)

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self.engine.close()


def link_of(engine: Engine) -> Any:
    """The first rank's end of a link."""
    store: Any = engine._store
    return store.index if store.stacked is None else store.stacked.link_index


@contextmanager
def apart(
    links: list[KeptLink],
    ref: str,
    url: str,
    *,
    here: dict[str, Any] | None = None,
    there: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[tuple[Prefiller, Engine]]:
    """A prefilling and a decoding engine of as many ranks, which know each other. `here` and
    `there` are options of the decoding and the prefilling one alone."""
    both = {k: v for k, v in options.items() if k in BOTH or k[:3] != "pd_"}
    prefiller = Prefiller(ref, url, **(both | (there or {})))
    engine = load(ref, decode_with=url, **(SHORT | options | (here or {})))
    try:
        wait_for(lambda: all(client.joined for client in clients(engine, links)))
        yield prefiller, engine
    finally:
        with suppress(InfernoError):
            engine.close()
        with suppress(InfernoError):
            prefiller.close()


def plugin_of(end: Any) -> Any:
    """A rank's end as the plugin has built it."""
    while hasattr(end, "index"):
        end = end.index
    return end


def clients(engine: Engine, links: list[KeptLink]) -> list[Any]:
    """The clients of all ranks of the decoding engine."""
    ends = [plugin_of(each) for each in (link_of(engine), *links)]
    return [end.client for end in ends if hasattr(end, "client")]


def remote(prompt: list[int]) -> int:
    """The tokens of the prompt's full blocks."""
    return (len(prompt) - 1) // 16 * 16


@alike
@pytest.mark.parametrize("name", ["float32", "int8", "latent", "windows between", "states"])
def test_every_kind_of_cache_gives_the_tokens_of_one_process(
    name: str, tmp_path: Path, url: str, links: list[KeptLink]
) -> None:
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    options = case.options | {"dtype": "float32"}  # so that two ranks draw what one process does
    # In 8 bits, sums in another order may draw another token: those of ranks are right then.
    one = load(ref, 2 if name == "int8" else 1, **options)
    prompts = [*PROMPTS, PROMPTS[0][:70] + PROMPTS[1][:40]]
    pairs = [(prompt, params) for prompt in prompts for params in (GREEDY, SEEDED)]
    right = [ask(one, prompt, params)[0] for prompt, params in pairs]
    one.close()
    with apart(links, ref, url, **options) as (prefiller, engine):
        assert isinstance(prefiller.link, SharedLink)
        for (prompt, params), tokens in zip(pairs, right, strict=True):
            engine._scheduler._groups.reset()
            ids, first = ask(engine, prompt, params)
            assert ids == tokens
            assert first.num_remote == first.num_cached == remote(prompt)
        assert engine.stats().linked_prompts == len(pairs)
        assert engine.stats().fallbacks == {}
        assert prefiller.engine.stats().linked_bytes == engine.stats().linked_bytes > 0
        assert prefiller.engine.stats().cached_tokens > 0, "it has no prefix cache"
    assert not prefiller.error


def test_shares_come_over_tcp_too(tmp_path: Path, links: list[KeptLink]) -> None:
    one = load("demo", 1, dtype="float32")
    right = [ask(one, prompt, SEEDED)[0] for prompt in PROMPTS]
    given: dict[str, Any] = {"pd_token_file": token_file(tmp_path / "t"), "dtype": "float32"}
    with apart(links, "demo", tcp_url(), **given) as (_, engine):
        for prompt, tokens in zip(PROMPTS, right, strict=True):
            ids, first = ask(engine, prompt, SEEDED)
            assert ids == tokens and first.num_remote == remote(prompt)


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    """One process's tokens after each prompt."""
    one = load("demo", 1, dtype="float32")
    return [ask(one, prompt)[0] for prompt in PROMPTS]


@contextmanager
def demo(links: list[KeptLink], url: str, **options: Any) -> Iterator[tuple[Prefiller, Engine]]:
    with apart(links, "demo", url, dtype="float32", **options) as both:
        yield both


@pytest.mark.slow
def test_more_ranks_are_linked_too(url: str, links: list[KeptLink], right: list[list[int]]) -> None:
    with demo(links, url, ranks=4) as (_, engine):
        for prompt, tokens in zip(PROMPTS, right, strict=True):
            ids, first = ask(engine, prompt)
            assert ids == tokens and first.num_remote == remote(prompt)


def test_many_prompts_at_once_come_whole(url: str, links: list[KeptLink]) -> None:
    draw = random.Random(3)
    base = [draw.randrange(100) for _ in range(48)]
    lengths = [draw.randrange(30, 90) for _ in range(12)]
    prompts = [base[: 16 * (i % 4)] + [draw.randrange(100) for _ in range(length)]
               for i, length in enumerate(lengths)]  # fmt: skip
    one = load("demo", 1, dtype="float32")
    right = [ask(one, prompt)[0] for prompt in prompts]
    with demo(links, url) as (prefiller, engine):
        for i, prompt in enumerate(prompts):
            engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))
        outputs = run(engine)
        for i, tokens in enumerate(right):
            mine = [o for o in outputs if o.request_id == str(i)]
            assert [o.token_id for o in mine] == tokens
            assert counted(mine).num_cached == remote(prompts[i])
        assert engine.stats().fallbacks == {}
        nothing_is_left(prefiller, engine, links)


def nothing_is_left(prefiller: Prefiller, engine: Engine, links: list[KeptLink]) -> None:
    """No rank of either end keeps anything of a prompt."""
    store: Any = engine._store
    ends = [plugin_of(each) for each in (prefiller.link, store.index, *links)]
    names = ("_open", "_wanted", "_near", "_coming", "_by_number", "_held")
    wait_for(lambda: not any(getattr(end, name, None) for end in ends for name in names))
    servers = [end.server for end in ends if hasattr(end, "server")]

    def arenas_are_free() -> bool:
        arenas = [peer.arena for server in servers for peer in [*server._peers.values()]]
        return all(arena._free == [(0, arena.nbytes)] for arena in arenas)

    wait_for(arenas_are_free)
    link = prefiller.link
    wait_for(lambda: not (link._asked or link._ranks or link._begun or link._cut or link._ending))
    assert not store.index._fetches and not store.index._holders


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_without_one_rank_s_link_prompts_are_computed_here(
    rank: int, url: str, links: list[KeptLink], right: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(plugin, "_AGAIN", 1000.0)
    with demo(links, url) as (prefiller, engine):
        client = clients(engine, links)[rank]
        client._lose("lost")
        began = time.monotonic()
        tokens, first = ask(engine, PROMPTS[0])
        assert tokens == right[0] and first.num_remote == 0
        assert time.monotonic() - began < 30, "it waits for what does not come"
        assert engine.stats().fallbacks == {["not connected", "rank"][rank]: 1}
        monkeypatch.setattr(plugin, "_AGAIN", 0.1)
        wait_for(lambda: client.joined)
        engine._scheduler._groups.reset()
        tokens, first = ask(engine, PROMPTS[0])
        assert tokens == right[0] and first.num_remote == remote(PROMPTS[0]), "and used again"
        nothing_is_left(prefiller, engine, links)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_loses_its_link_in_a_transfer_leaves_a_shorter_prefix(
    rank: int, url: str, links: list[KeptLink], right: list[list[int]]
) -> None:
    with demo(links, url) as (prefiller, engine):
        prefiller.pauses = True
        time.sleep(0.1)
        engine.submit(Request(id="0", token_ids=tuple(PROMPTS[2]), params=GREEDY))
        engine.step()
        wait_for(lambda: prefiller.engine.busy)
        for _ in range(2):  # the second one saves what the first one has computed
            prefiller.engine.step()
        ends = [plugin_of(each) for each in (engine._store.index, *links)]
        end = [each for each in ends if hasattr(each, "client")][rank]
        wait_for(lambda: (engine.step() == [] and False) or end.usage.linked_bytes)
        end.client._lose("lost")
        end.client._greet()  # another session
        wait_for(lambda: end.client.joined)
        prefiller.pauses = False
        outputs = run(engine)
        assert [o.token_id for o in outputs] == right[2]
        assert 0 < counted(outputs).num_remote < 128, "the prefix that all ranks hold"
        assert engine.stats().fallbacks == {["lost", "rank"][rank]: 1}
        wait_for(lambda: not prefiller.engine.busy)
        nothing_is_left(prefiller, engine, links)
        engine._scheduler._groups.reset()
        assert ask(engine, PROMPTS[2])[1].num_remote == 128, "and used again"


def test_blocks_that_are_damaged_on_one_rank_s_way_are_computed_by_all(
    url: str, links: list[KeptLink], right: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with demo(links, url) as (_, engine):
        take = plugin.Client._blocks

        def damaged(self: Any, blocks: Any, frame: Any) -> None:
            if 4 in blocks.indices and self.url.endswith(".1"):
                blocks = type(blocks)(
                    blocks.transfer, blocks.group, blocks.indices, 1, blocks.offset
                )
            take(self, blocks, frame)

        monkeypatch.setattr(plugin.Client, "_blocks", damaged)
        tokens, first = ask(engine, PROMPTS[2])
        assert tokens == right[2] and first.num_remote == 48
        assert engine.stats().fallbacks == {"rank": 1}


def test_ranks_that_do_nothing_are_waited_for_only_so_long(
    url: str, links: list[KeptLink], right: list[list[int]]
) -> None:
    with demo(links, url, pd_timeout=0.5) as (prefiller, engine):
        prefiller.pauses = True
        tokens, first = ask(engine, PROMPTS[0])
        assert tokens == right[0] and first.num_remote == 0
        assert sum(engine.stats().fallbacks.values()) == 1
        prefiller.pauses = False
        assert ask(engine, PROMPTS[1])[1].num_remote == 80, "and used again"
        nothing_is_left(prefiller, engine, links)


def test_an_end_with_too_much_to_do_says_so(
    url: str, links: list[KeptLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip("inferno_disaggregated.server")
    monkeypatch.setattr(server, "MOST_PROMPTS", 0)
    with demo(links, url) as (prefiller, engine):
        assert ask(engine, PROMPTS[0])[1].num_remote == 0
        assert sum(engine.stats().fallbacks.values()) == 1
        nothing_is_left(prefiller, engine, links)


def test_a_request_that_is_dropped_leaves_nothing_on_any_rank(
    url: str, links: list[KeptLink]
) -> None:
    with demo(links, url) as (prefiller, engine):
        prefiller.pauses = True
        engine.submit(Request(id="a", token_ids=tuple(PROMPTS[0]), params=GREEDY))
        engine.step()
        engine.abort("a")
        assert not engine.busy
        prefiller.pauses = False
        nothing_is_left(prefiller, engine, links)
        assert ask(engine, PROMPTS[1])[1].num_remote == 80


@pytest.mark.parametrize(("there", "here"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_another_number_of_ranks_is_refused_and_both_are_named(
    there: int, here: int, url: str, caplog: pytest.LogCaptureFixture, right: list[list[int]]
) -> None:
    prefiller = Prefiller("demo", url, ranks=there, dtype="float32")
    engine = load("demo", here, decode_with=url, dtype="float32", **SHORT)
    said = {1: "rank 'None'", 2: "rank '[0, 2]'"}
    wait_for(lambda: "refuses" in caplog.text)
    assert all(each in caplog.text for each in said.values())
    tokens, first = ask(engine, PROMPTS[0])
    assert tokens == right[0] and first.num_remote == 0
    assert engine.stats().fallbacks == {"not connected": 1}
    engine.close()
    prefiller.close()


def test_a_prefilling_rank_that_fails_ends_its_group_and_no_answer(
    url: str, links: list[KeptLink], right: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with demo(links, url) as (prefiller, engine):
        take = KeptLink.take

        def failing(self: KeptLink, call: Any) -> None:
            if call.action == "end":
                raise RuntimeError("a bug")
            take(self, call)

        monkeypatch.setattr(KeptLink, "take", failing)
        engine.submit(Request(id="0", token_ids=tuple(PROMPTS[0]), params=GREEDY))
        engine.step()
        wait_for(lambda: prefiller.error)
        with suppress(InfernoError):
            prefiller.close()  # as its process ends
        assert [o.token_id for o in run(engine)] == right[0]
        engine._scheduler._groups.reset()
        again = Prefiller("demo", url, dtype="float32")
        monkeypatch.setattr(KeptLink, "take", take)
        wait_for(lambda: all(client.joined for client in clients(engine, links)))
        assert ask(engine, PROMPTS[0])[1].num_remote == 96
        again.close()


@pytest.mark.parametrize(
    "name",
    ["float32", *(pytest.param(n, marks=pytest.mark.slow) for n in ("windows between", "states"))],
)
def test_stages_of_the_same_number_are_linked_too(
    name: str, tmp_path: Path, url: str, links: list[KeptLink]
) -> None:
    """Also of layers that keep nothing of one kind in one of the stages."""
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    options: dict[str, Any] = case.options | {"dtype": "float32"}
    one = load(ref, 1, **options)
    prompts = [*PROMPTS, PROMPTS[0][:70] + PROMPTS[1][:40]]
    right = [ask(one, prompt)[0] for prompt in prompts]
    with apart(links, ref, url, **options, ranks=1, pp=2) as (prefiller, engine):
        for prompt, tokens in zip(prompts, right, strict=True):
            engine._scheduler._groups.reset()
            ids, first = ask(engine, prompt)
            assert ids == tokens and first.num_remote == remote(prompt)
        assert engine.stats().fallbacks == {}
        for i, prompt in enumerate(prompts):  # with steps in flight
            engine.submit(Request(id=str(i), token_ids=(7, *prompt), params=GREEDY))
        outputs = run(engine)
        for i, prompt in enumerate(prompts):
            mine = [o for o in outputs if o.request_id == str(i)]
            assert [o.token_id for o in mine] == ask(one, [7, *prompt])[0]
            assert counted(mine).num_cached == remote([7, *prompt])
        assert engine.stats().fallbacks == {}
        nothing_is_left(prefiller, engine, links)


@pytest.mark.slow
def test_stages_of_ranks_are_linked_too(
    url: str, links: list[KeptLink], right: list[list[int]]
) -> None:
    with demo(links, url, ranks=2, pp=2) as (prefiller, engine):
        for prompt, tokens in zip(PROMPTS, right, strict=True):
            ids, first = ask(engine, prompt)
            assert ids == tokens and first.num_remote == remote(prompt)
        nothing_is_left(prefiller, engine, links)
