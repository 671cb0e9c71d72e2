"""Prefill and decode apart: the tokens are those of one engine, whatever happens on the way."""

from __future__ import annotations

import logging
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

import pytest
from tests.stores.test_stored_caches import CASES, load, toy_of

from inferno import LLM
from inferno.core.engine import Engine
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options, resolve
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import alike

DRAW = random.Random(7)
PROMPTS = [[DRAW.randrange(100) for _ in range(length)] for length in (110, 90, 130)]
SEEDED = SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=8)
GREEDY = SamplingParams(temperature=0, max_tokens=8)
BOTH = ("pd_token_file", "pd_buffer")
SHORT = {"pd_min_tokens": 20, "pd_min_uncached": 20}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"shm://test-{secrets.token_hex(6)}"


class Prefiller:
    """An engine that computes prompts for others, in a thread."""

    def __init__(self, ref: str, url: str, **options: Any) -> None:
        self.engine = load(ref, prefill_for=url, **options)
        self._ends = self.pauses = False
        self.paused = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends:
            if self.pauses:
                self.paused.set()
                time.sleep(0.01)
            elif self.engine.busy:
                assert self.engine.step() == [], "the other end's outputs leave the engine"
                self.engine.check()
            else:
                descriptor = self.engine.listens
                assert descriptor is not None
                select([descriptor], [], [], 0.05)

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self.engine.close()


@contextmanager
def apart(ref: str, url: str, **options: Any) -> Iterator[tuple[Prefiller, Engine]]:
    """A prefilling and a decoding engine that know each other."""
    both = {k: v for k, v in options.items() if k in BOTH or k[:3] != "pd_"}
    prefiller = Prefiller(ref, url, **both)
    engine = load(ref, decode_with=url, **(SHORT | options))
    try:
        wait_for(lambda: joined(engine))
        yield prefiller, engine
    finally:
        engine.close()
        prefiller.close()


def joined(engine: Engine) -> bool:
    store: Any = engine._store
    end = store.index if store.stacked is None else store.stacked.link_index
    return all(each.client.joined for each in end.instances)


def wait_for(what: Callable[[], object]) -> None:
    for _ in range(2000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it never comes")


def ask(
    engine: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY, **given: Any
) -> tuple[list[int], EngineOutput]:
    """The tokens of an answer, and the first output."""
    engine.submit(Request(id="0", token_ids=tuple(prompt), params=params, **given))
    outputs = run(engine)
    return [o.token_id for o in outputs if o.token_id is not None], counted(outputs)


def counted(outputs: Sequence[EngineOutput]) -> EngineOutput:
    """The output that says what was cached: the first that the engine itself has drawn."""
    return next((output for output in outputs if output.queue_seconds), outputs[0])


def run(engine: Engine) -> list[EngineOutput]:
    outputs = []
    while engine.busy:
        outputs += engine.step()
        engine.check()
    return outputs


@alike
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_cache_gives_the_tokens_of_one_engine(
    name: str, tmp_path: Path, url: str
) -> None:
    case = CASES[name]
    ref = toy_of(case.model, tmp_path / "toy")
    one = load(ref, **case.options)
    prompts = [*PROMPTS, PROMPTS[0][:70] + PROMPTS[1][:40]]
    pairs = [(prompt, params) for prompt in prompts for params in (GREEDY, SEEDED)]
    right = [ask(one, prompt, params)[0] for prompt, params in pairs]
    with apart(ref, url, **case.options) as (prefiller, engine):
        for (prompt, params), tokens in zip(pairs, right, strict=True):
            engine._scheduler._groups.reset()
            ids, first = ask(engine, prompt, params)
            assert ids == tokens
            assert first.num_remote == first.num_cached == (len(prompt) - 1) // 16 * 16
        assert engine.stats().linked_prompts == len(pairs)
        assert engine.stats().fallbacks == {}
        assert prefiller.engine.stats().linked_bytes == engine.stats().linked_bytes > 0
        assert prefiller.engine.stats().cached_tokens > 0, "it has no prefix cache"


@pytest.fixture
def token(tmp_path: Path) -> str:
    return token_file(tmp_path / "token")


def token_file(path: Path) -> str:
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return str(path)


def tcp_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def test_blocks_come_over_tcp_too(token: str) -> None:
    right = [ask(load("demo"), prompt, SEEDED)[0] for prompt in PROMPTS]
    with apart("demo", tcp_url(), pd_token_file=token) as (_, engine):
        for prompt, tokens in zip(PROMPTS, right, strict=True):
            ids, first = ask(engine, prompt, SEEDED)
            assert ids == tokens and first.num_remote == (len(prompt) - 1) // 16 * 16


def test_many_prompts_at_once_come_whole(url: str) -> None:
    draw = random.Random(3)
    prompts = [[draw.randrange(100) for _ in range(draw.randrange(30, 140))] for _ in range(12)]
    one = load("demo")
    right = [ask(one, prompt)[0] for prompt in prompts]
    with apart("demo", url) as (_, engine):
        for i, prompt in enumerate(prompts):
            engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))
        outputs = run(engine)
        for i, tokens in enumerate(right):
            mine = [o for o in outputs if o.request_id == str(i)]
            assert [o.token_id for o in mine] == tokens
            assert counted(mine).num_remote == (len(prompts[i]) - 1) // 16 * 16
        store: Any = engine._store
        assert not store.index._near and not store.index._coming, "blocks are kept for nobody"


def test_only_prompts_that_are_worth_it_are_sent_out(url: str) -> None:
    with apart("demo", url, pd_min_tokens=64, pd_min_uncached=48) as (_, engine):
        base = PROMPTS[2]
        assert ask(engine, base[:60])[1].num_remote == 0, "too short"
        engine._scheduler._groups.reset()
        assert ask(engine, base[:80])[1].num_remote == 64
        assert ask(engine, base[:110])[1].num_remote == 0, "enough is cached"
        engine._scheduler._groups.reset()
        ask(engine, base[:60])
        assert ask(engine, base)[1].num_remote == 80, "48 are held, and 80 come"
        assert engine.stats().fallbacks == {}


def test_another_layout_is_refused_and_both_are_named(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "inferno.link")
    prefiller = Prefiller("demo", url)
    engine = load("demo", decode_with=url, kv_cache_dtype="int8", **SHORT)
    wait_for(lambda: "refuses" in caplog.text)
    assert "'int8'" in caplog.text and "bfloat16" in caplog.text
    assert ask(engine, PROMPTS[0])[1].num_remote == 0
    assert engine.stats().fallbacks == {"not connected": 1}
    engine.close()
    prefiller.close()


def test_another_token_is_refused(
    token: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, other = tcp_url(), token_file(tmp_path / "other")
    prefiller = Prefiller("demo", url, pd_token_file=token)
    engine = load("demo", decode_with=url, pd_token_file=other, **SHORT)
    wait_for(lambda: "has another token" in caplog.text)
    assert ask(engine, PROMPTS[0])[1].num_remote == 0
    engine.close()
    prefiller.close()


@pytest.mark.parametrize(
    "options, why",
    [
        ({"decode_with": "tcp://10.0.0.1:7000"}, "there is no token"),
        ({"decode_with": "tcp://host"}, "no address"),
        ({"prefill_for": "shm://a/b"}, "no address"),
        ({"prefill_for": "shm://a", "decode_with": "shm://a"}, "exclude each other"),
        ({"prefill_for": "shm://a", "cache_policy": "none"}, "cache policy is none"),
        ({"pd_token_file": "x"}, "without a link"),
        ({"decode_with": "shm://a", "pd_timeout": 0.0}, "pd_timeout"),
        ({"decode_with": "shm://a", "pd_buffer": "much"}, "--pd-buffer"),
    ],
)
def test_what_cannot_be_is_refused_by_the_plan(options: dict[str, Any], why: str) -> None:
    with pytest.raises((OptionError, UnsupportedError), match=why):
        resolve("demo", Options(**options))


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(secrets.token_hex(32))
    file.chmod(0o644)
    with pytest.raises(UnsupportedError, match="chmod 600"):
        resolve("demo", Options(decode_with="tcp://host:1", pd_token_file=str(file)))


def test_two_engines_cannot_listen_at_one_name(url: str) -> None:
    prefiller = Prefiller("demo", url)
    with pytest.raises(OptionError, match="another process listens"):
        load("demo", prefill_for=url)
    prefiller.close()


def test_without_the_other_end_prompts_are_computed_here(url: str) -> None:
    engine = load("demo", decode_with=url, **SHORT)
    tokens, first = ask(engine, PROMPTS[0])
    assert tokens == ask(load("demo"), PROMPTS[0])[0] and first.num_remote == 0
    assert engine.stats().fallbacks == {"not connected": 1}
    engine.close()


def test_an_end_that_comes_back_is_used_again(url: str) -> None:
    with apart("demo", url) as (prefiller, engine):
        right = ask(engine, PROMPTS[0])
        prefiller.close()
        wait_for(lambda: not joined(engine))
        again = Prefiller("demo", url)
        wait_for(lambda: joined(engine))
        engine._scheduler._groups.reset()
        assert ask(engine, PROMPTS[0]) == right
        again.close()


def test_an_end_that_does_nothing_is_waited_for_only_so_long(url: str) -> None:
    with apart("demo", url, pd_timeout=0.2) as (prefiller, engine):
        right = ask(load("demo"), PROMPTS[0])[0]
        prefiller.pauses = True
        tokens, first = ask(engine, PROMPTS[0])
        assert tokens == right and first.num_remote == 0
        assert engine.stats().fallbacks == {"late": 1}
        prefiller.pauses = False
        tokens, first = ask(engine, PROMPTS[1])
        assert first.num_remote == 80, "and used again"


def test_an_end_with_too_much_to_do_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("inferno_disaggregated.server")
    monkeypatch.setattr(server, "MOST_PROMPTS", 0)
    with apart("demo", url) as (_, engine):
        assert ask(engine, PROMPTS[0])[1].num_remote == 0
        assert engine.stats().fallbacks == {"full": 1}


def test_where_there_is_no_room_for_all_blocks_some_come(url: str) -> None:
    right = ask(load("demo"), PROMPTS[2])[0]
    with apart("demo", url, pd_buffer="160KiB") as (_, engine):
        tokens, first = ask(engine, PROMPTS[2])
        assert tokens == right and 0 < first.num_remote < 128
        assert engine.stats().fallbacks == {"short": 1}
        tokens, first = ask(engine, PROMPTS[0][:60])
        assert first.num_remote == 48, "what was given back is used again"


def test_damaged_blocks_are_computed_here(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("inferno_disaggregated.client")
    right = ask(load("demo"), PROMPTS[2])[0]
    with apart("demo", url) as (_, engine):
        take = client.Client._blocks

        def damaged(self: Any, blocks: Any, frame: Any) -> None:
            if 4 in blocks.indices:
                blocks = type(blocks)(
                    blocks.transfer, blocks.group, blocks.indices, 1, blocks.offset
                )
            take(self, blocks, frame)

        monkeypatch.setattr(client.Client, "_blocks", damaged)
        tokens, first = ask(engine, PROMPTS[2])
        assert tokens == right and first.num_remote == 48
        assert engine.stats().store_lost_parts > 0


def test_a_request_that_ends_at_once_takes_nothing_from_the_next(url: str) -> None:
    once = SamplingParams(temperature=0, max_tokens=1)
    with apart("demo", url) as (_, engine):
        for _ in range(3):
            engine._scheduler._groups.reset()
            assert ask(engine, PROMPTS[0], once)[1].num_remote == 96


def test_a_request_that_is_dropped_leaves_nothing_behind(url: str) -> None:
    with apart("demo", url) as (prefiller, engine):
        prefiller.pauses = True
        engine.submit(Request(id="a", token_ids=tuple(PROMPTS[0]), params=GREEDY))
        engine.step()
        assert engine.stats().num_waiting == 1
        engine.abort("a")
        assert not engine.busy
        prefiller.pauses = False
        here, there = (each._store for each in (engine, prefiller.engine))
        there_: Any = there
        here_: Any = here
        wait_for(lambda: not there_.index._open and not there_.index._wanted)
        [peer] = there_.index.server._peers.values()
        wait_for(lambda: peer.arena._free == [(0, peer.arena.nbytes)])
        assert not here_.index._near and not here_.index._coming
        assert ask(engine, PROMPTS[1])[1].num_remote == 80


def test_prompts_of_other_salts_are_other_prompts_there_too(url: str) -> None:
    with apart("demo", url) as (prefiller, engine):
        for salt, cached in (("a", 0), ("b", 0), ("a", 96)):
            before = prefiller.engine.stats().cached_tokens
            engine._scheduler._groups.reset()
            assert ask(engine, PROMPTS[0], cache_salt=salt)[1].num_remote == 96
            assert prefiller.engine.stats().cached_tokens - before == cached


def test_an_instance_answers_its_own_requests_beside_others(url: str) -> None:
    with apart("demo", url) as (prefiller, engine):
        right = ask(engine, PROMPTS[0])[0]
        prefiller.pauses = True
        time.sleep(0.1)
        prefiller.engine.submit(Request(id="own", token_ids=tuple(PROMPTS[0]), params=GREEDY))
        engine._scheduler._groups.reset()
        engine.submit(Request(id="0", token_ids=tuple(PROMPTS[0]), params=GREEDY))
        mine, others = list[EngineOutput](), list[EngineOutput]()
        while engine.busy or prefiller.engine.busy:
            others += prefiller.engine.step()
            mine += engine.step()
        assert [o.token_id for o in mine] == [o.token_id for o in others] == right
        prefiller.pauses = False


def test_the_python_api_takes_the_options(url: str) -> None:
    with pytest.raises(OptionError, match="AsyncLLM"):
        LLM("demo", prefill_for=url)
    prefiller = Prefiller("demo", url, max_num_seqs=64)
    given: dict[str, Any] = {"block_size": 16, "memory": "2GiB", **SHORT}
    with LLM("demo", decode_with=url, **given) as llm:
        [output] = llm.generate({"prompt_token_ids": PROMPTS[0]}, GREEDY)
        assert list(output.outputs[0].token_ids) == ask(load("demo"), PROMPTS[0])[0]
    prefiller.close()
