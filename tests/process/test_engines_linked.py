"""Engines of two servers, of which one computes prompts for the other, and what they publish. No
clocks."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.process.routed import SHORT, WithClient, collect, ids, request, running, submit, until
from tests.stores.test_apart import counted

from inferno import LLM, host
from inferno.plan import Options, Plan, resolve
from inferno.process.engines.client import EnginesClient

pytest.importorskip("inferno_demo")
msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

PROMPTS = [[5 + (7 * i + 3 * j) % 90 for j in range(100)] for i in range(2)]
GIVEN: dict[str, Any] = {"device": "cpu", "memory": "3GiB", "dp": 2, "block_size": 16}


@pytest.fixture(scope="module", autouse=True)
def cores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "usable_cores", lambda: 2)
        yield


def ports(count: int) -> list[int]:
    """Free ports that follow each other."""
    for first in range(20000 + secrets.randbelow(20000), 65000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return list(range(first, first + count))
    raise AssertionError("no ports are free")


@pytest.fixture(scope="module")
def prefilling() -> Iterator[str]:
    """Two engines that compute prompts: their addresses."""
    pytest.importorskip("inferno_disaggregated")
    name = f"shm://test-{secrets.token_hex(6)}"
    for _ in running(resolve("demo", Options(prefill_for=name, **GIVEN))):
        yield f"{name},{name}-1"


@pytest.fixture(scope="module")
def published() -> list[int]:
    """Ports of two engines' events, and of their replays."""
    pytest.importorskip("inferno_kv_events")
    return ports(4)


@pytest.fixture(scope="module")
def plan(prefilling: str, published: list[int]) -> Plan:
    urls = [f"tcp://127.0.0.1:{port}" for port in (published[0], published[2])]
    given: dict[str, Any] = {**GIVEN, "kv_events": urls[0], "kv_events_replay": urls[1]}
    link: dict[str, Any] = {"decode_with": prefilling, "pd_min_tokens": 20, "pd_min_uncached": 20}
    return resolve("demo", Options(**given, **link))


@pytest.fixture(scope="module")
def with_client(plan: Plan) -> Iterator[WithClient]:
    yield from running(plan)


@contextmanager
def asking(port: int) -> Iterator[Any]:
    """A function that returns all batches that an engine remembers, with their numbers."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as replay:
        replay.setsockopt(zmq.RCVTIMEO, 10_000)
        replay.setsockopt(zmq.LINGER, 0)
        replay.connect(f"tcp://127.0.0.1:{port}")

        def ask() -> list[Any]:
            replay.send_multipart([b"", bytes(8)])
            found = list[Any]()
            while True:
                _, number, body = replay.recv_multipart()
                if int.from_bytes(number, "big", signed=True) < 0:
                    return found
                found.append(msgspec.msgpack.decode(body))

        yield ask


async def linked(client: EnginesClient, number: int) -> None:
    """Ask an engine until its prompts are computed elsewhere: links come to be in time."""
    for i in range(200):
        prompt = [5 + (number + i) % 90, *reversed(PROMPTS[number])]
        [stream] = submit(client, request(f"{number}.{i}", token_ids=prompt))
        while stream.placed.engine != number:
            await collect(stream)
            [stream] = submit(client, request(f"{number}.{i}+", token_ids=prompt))
        if counted(await collect(stream)).num_remote:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no prompt is sent out")


@pytest.mark.slow
def test_engines_with_ranks_are_linked_rank_by_rank() -> None:
    """Eight processes: two engines of two ranks on each side."""
    pytest.importorskip("inferno_disaggregated")
    name = f"shm://test-{secrets.token_hex(6)}"
    given: dict[str, Any] = {**GIVEN, "tp": 2, "dtype": "float32"}
    link: dict[str, Any] = {"pd_min_tokens": 20, "pd_min_uncached": 20}
    with LLM("demo", device="cpu", memory="1GiB", dtype="float32") as llm:
        answers = llm.generate([*PROMPTS], SHORT)
    wanted = [list(answer.outputs[0].token_ids) for answer in answers]

    async def body(client: EnginesClient) -> None:
        for number in range(2):
            await linked(client, number)
        streams = submit(
            client, *(request(f"r{i}", token_ids=each) for i, each in enumerate(PROMPTS))
        )
        assert {stream.placed.engine for stream in streams} == {0, 1}
        outputs = [await collect(stream) for stream in streams]
        assert [ids(each) for each in outputs] == wanted
        assert [counted(each).num_remote for each in outputs] == [96, 96]

    for _ in running(resolve("demo", Options(prefill_for=name, **given))):
        decoding = Options(decode_with=f"{name},{name}-1", **given, **link)
        for with_client in running(resolve("demo", decoding)):
            with_client(body)


@pytest.mark.slow
def test_engines_keep_what_came_to_any_of_them(tmp_path: Path) -> None:
    pytest.importorskip("inferno_disaggregated")
    pytest.importorskip("inferno_offload")
    name = f"shm://test-{secrets.token_hex(6)}"
    link: dict[str, Any] = {"pd_min_tokens": 20, "pd_min_uncached": 20}
    here, there = ({**GIVEN, "kv_store": str(tmp_path / end)} for end in ("here", "there"))
    decoding = resolve("demo", Options(decode_with=f"{name},{name}-1", **here, **link))
    found = list[list[list[int | None]]]()

    async def body(client: EnginesClient) -> None:
        if not found:
            for number in range(2):
                await linked(client, number)
        streams = submit(
            client, *(request(f"r{i}", token_ids=each) for i, each in enumerate(PROMPTS))
        )
        outputs = [await collect(stream) for stream in streams]
        found.append([ids(each) for each in outputs])
        firsts = [counted(each) for each in outputs]
        kept = len(found) > 1
        assert [each.num_remote for each in firsts] == ([0, 0] if kept else [96, 96])
        assert [each.num_disk for each in firsts] == ([96, 96] if kept else [0, 0])

    for _ in running(resolve("demo", Options(prefill_for=name, **there))):
        for _ in range(2):
            for with_client in running(decoding):
                with_client(body)
    assert found[0] == found[1]
    folders = {path.name for path in tmp_path.glob("*/engine-*")}
    assert folders == {"engine-0", "engine-1"} and any(tmp_path.glob("there/engine-*/*/*"))


def test_each_engine_has_its_prompts_computed_and_tells_its_own_blocks(
    with_client: WithClient, published: list[int]
) -> None:
    with LLM("demo", device="cpu", memory="1GiB") as llm:
        answers = llm.generate([*PROMPTS], SHORT)
    wanted = [list(answer.outputs[0].token_ids) for answer in answers]

    async def body(client: EnginesClient) -> None:
        def connected() -> list[bool]:
            return [each.connected for each in client.stats.instances.values()]

        await until(lambda: connected() == [True, True])  # idle engines say so
        streams = submit(
            client, *(request(f"r{i}", token_ids=each) for i, each in enumerate(PROMPTS))
        )
        homes = [stream.placed.engine for stream in streams]
        assert set(homes) == {0, 1}
        outputs = [await collect(stream) for stream in streams]
        assert [ids(each) for each in outputs] == wanted
        assert [counted(each).num_remote for each in outputs] == [96, 96]
        await until(lambda: all(view.stats.linked_bytes for view in client.engines))
        for engine, port in enumerate(published[2:]):
            with asking(port) as ask:
                prompt = PROMPTS[homes.index(engine)]
                async with asyncio.timeout(30):
                    while not (told := _tokens(batches := ask())) & {tuple(prompt[:16])}:
                        await asyncio.sleep(0.05)
            assert {rank for _, _, rank in batches} == {engine}
            assert tuple(PROMPTS[homes.index(1 - engine)][:16]) not in told

    with_client(body)


@pytest.mark.slow
def test_a_subscriber_hears_the_second_engine_at_the_next_port(
    with_client: WithClient, published: list[int]
) -> None:
    prompt = [90 - each % 80 for each in range(40)]

    async def body(client: EnginesClient) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as sub:
            sub.setsockopt(zmq.RCVTIMEO, 10_000)
            sub.setsockopt(zmq.LINGER, 0)
            sub.subscribe(b"kv@")
            for port in published[:2]:
                sub.connect(f"tcp://127.0.0.1:{port}")
            heard = set[int]()
            async with asyncio.timeout(60):
                for i in range(1000):  # subscriptions take a moment
                    each = (request(f"s{i}.{j}", token_ids=[5 + i % 90, *prompt]) for j in (0, 1))
                    for stream in submit(client, *each):
                        await collect(stream)
                    while sub.poll(50):
                        topic, _, body = sub.recv_multipart()
                        assert topic.endswith(b"@demo")
                        heard.add(msgspec.msgpack.decode(body)[2])
                    if heard == {0, 1}:
                        return
            raise AssertionError(heard)

    with_client(body)


def _tokens(batches: list[Any]) -> set[tuple[int, ...]]:
    """The first blocks of prompts that batches tell of."""
    events = [event for _, told, _ in batches for event in told]
    return {tuple(e[3][:16]) for e in events if e[0] == "BlockStored" and e[2] is None}
