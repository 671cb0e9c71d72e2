"""The contract of sinks, the form on the wire, and subscribers that are late, slow or hostile."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from attrs import evolve

from inferno.contracts import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    EventGroup,
    EventNeed,
    EventPublisher,
)
from inferno.errors import OptionError
from inferno.testing import EventSinkTests
from inferno_kv_events import publisher as waiting
from inferno_kv_events import zeromq
from inferno_kv_events.wire import batch_of

Received = Callable[[int], list[tuple[int, list[Any]]]]
KEYS = tuple(bytes([7] * 8 + [0] * 7 + [i]) for i in range(1, 4))
FULL = (EventGroup("full", None),)
WINDOW = (*FULL, EventGroup("window", 8))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def subscribed(url: str, topic: bytes = b"") -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.setsockopt(zmq.RCVTIMEO, 10_000)
        sub.setsockopt(zmq.LINGER, 0)
        sub.subscribe(topic)
        sub.connect(url)
        time.sleep(0.3)  # until the publisher knows of it: earlier messages are not for it
        yield sub


def decoded(number: bytes, payload: bytes) -> tuple[int, list[Any]]:
    return int.from_bytes(number, "big", signed=True), msgspec.msgpack.decode(payload or b"\x90")


class TestZeroMQ(EventSinkTests):
    sink = "zmq"

    def address(self, folder: Path) -> str:
        return f"tcp://127.0.0.1:{free_port()}"

    def bad_address(self, folder: Path) -> str:
        return "tcp://127.0.0.1:port"

    @contextmanager
    def receiving(self, need: EventNeed) -> Iterator[Received]:
        with subscribed(need.url, b"kv@") as sub:

            def received(count: int) -> list[tuple[int, list[Any]]]:
                messages = [sub.recv_multipart() for _ in range(count)]
                assert {topic for topic, *_ in messages} == {b"kv@here@toy"}
                return [decoded(*rest) for _, *rest in messages]

            yield received


class TestFile(EventSinkTests):
    sink = "file"

    def address(self, folder: Path) -> str:
        return (folder / "events of it.jsonl").as_uri()

    def bad_address(self, folder: Path) -> str:
        return (folder / "missing" / "events").as_uri()

    @contextmanager
    def receiving(self, need: EventNeed) -> Iterator[Received]:
        path = Path(need.url.removeprefix("file://").replace("%20", " "))

        def received(count: int) -> list[tuple[int, list[Any]]]:
            for _ in range(200):
                lines = path.read_text().splitlines() if path.exists() else []
                if len(lines) == count:
                    break
                time.sleep(0.05)
            return [(number, batch) for number, *batch in map(json.loads, lines)]

        yield received

    def test_a_file_is_for_its_owner_and_has_no_replay(self, tmp_path: Path) -> None:
        path = tmp_path / "events"
        need = EventNeed(url=path.as_uri(), model="toy", block_size=2, groups=FULL)
        from inferno_kv_events.lines import build

        build(need).close()
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(OptionError, match="--kv-events-replay"):
            build(evolve(need, replay="tcp://*:5558"))


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            BlocksStored(KEYS[:2], None, (1, 2, 3, 4), "memory", 0),
            ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU", None, None, 0]
            + ["full_attention"],
        ),
        (
            BlocksStored(KEYS[1:], KEYS[0], (3, 4, 5, 6), "disk", 1, "a", "tenant"),
            ["BlockStored", [2, 3], 1, [3, 4, 5, 6], 2, None, "DISK", "a", [["a"], ["a"]], 1]
            + ["sliding_window", 8],
        ),
        (
            BlocksStored(KEYS[:2], None, (1, 2, 3, 4), "host", 0, "", "tenant"),
            ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "CPU", None]
            + [[["tenant"], None], 0, "full_attention"],
        ),
        (
            BlocksStored(KEYS, None, (1,) * 6, "memory", 0, "a", "", ("", "1f,2e", "2e")),
            ["BlockStored", [1, 2, 3], None, [1] * 6, 2, None, "GPU", "a"]
            + [[["a"], ["a", "1f", "2e"], ["a", "2e"]], 0, "full_attention"],
        ),
        (
            BlocksStored(KEYS, None, (), "disk", 0),
            ["BlockStored", [1, 2, 3], None, [], 2, None, "DISK", None, None, 0, "full_attention"],
        ),
        (BlocksRemoved(KEYS, "memory", 1), ["BlockRemoved", [1, 2, 3], "GPU", 1]),
        (BlocksCleared(), ["AllBlocksCleared"]),
    ],
)
def test_an_event_has_the_form_that_routers_read(event: CacheEvent, told: list[Any]) -> None:
    need = EventNeed(url="", model="toy", block_size=2, groups=WINDOW, engine=3)
    assert batch_of(1.5, [event], need) == [1.5, [told], 3]


# --- replay ---------------------------------------------------------------------------------------


@pytest.fixture
def need() -> EventNeed:
    urls = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    return EventNeed(url=urls[0], replay=urls[1], model="toy", block_size=2, groups=FULL)


@contextmanager
def publishing(need: EventNeed) -> Iterator[EventPublisher]:
    publisher = zeromq.build(need)
    yield publisher
    publisher.close()


@contextmanager
def asking(need: EventNeed, kind: int = zmq.DEALER) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as replay:
        replay.setsockopt(zmq.RCVTIMEO, 10_000)
        replay.setsockopt(zmq.LINGER, 0)
        assert need.replay is not None
        replay.connect(need.replay)
        yield replay


def event(i: int) -> list[CacheEvent]:
    return [BlocksRemoved((i.to_bytes(16, "big"),), "memory", 0)]


def replayed(replay: zmq.Socket[bytes], first: int) -> list[tuple[int, list[Any]]]:
    replay.send_multipart([b"", first.to_bytes(8, "big")])
    batches = list[tuple[int, list[Any]]]()
    while not batches or batches[-1][0] >= 0:
        _, *frames = replay.recv_multipart()
        batches.append(decoded(*frames))
    return batches[:-1]


def test_a_late_subscriber_asks_for_what_it_has_missed(need: EventNeed) -> None:
    with publishing(need) as publisher, asking(need) as replay:
        for i in range(20):
            publisher.publish(event(i))
        deadline = time.monotonic() + 10  # they are published by a thread
        while len(batches := replayed(replay, 0)) < 20 and time.monotonic() < deadline:
            pass
        assert [n for n, _ in batches] == list(range(20))
        batches = replayed(replay, 17)
    assert [(n, events[0][1]) for n, (_, events, _) in batches] == [(i, [i]) for i in (17, 18, 19)]


def test_only_the_last_batches_are_remembered(
    need: EventNeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "MOST_REMEMBERED", 5)
    with publishing(need) as publisher, asking(need) as replay:
        for i in range(20):
            publisher.publish(event(i))
        assert [n for n, _ in replayed(replay, 0)] == list(range(15, 20))


def test_garbage_on_the_replay_socket_changes_nothing(need: EventNeed) -> None:
    garbage = [[b""], [b"", b""], [b"", b"1" * 7], [b"x", b"1" * 8], [b""] * 9, [b"x" * 3000]]
    with publishing(need) as publisher:
        publisher.publish(event(0))
        for frames in garbage:
            with asking(need) as hostile:
                hostile.send_multipart(frames)
        with asking(need, zmq.PUSH) as stranger:  # the handshake fails
            stranger.send_multipart([b"", b"0" * 8], zmq.NOBLOCK) if stranger.poll(
                100, zmq.POLLOUT
            ) else None
        with socket.create_connection(
            ("127.0.0.1", int((need.replay or "").split(":")[-1]))
        ) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))
        with asking(need) as replay:
            assert [n for n, _ in replayed(replay, 0)] == [0]


def test_whoever_asks_and_does_not_read_holds_up_nobody(need: EventNeed) -> None:
    with publishing(need) as publisher, asking(need) as silent, asking(need) as replay:
        for i in range(300):
            publisher.publish([*event(i)] * 50)
        for _ in range(5):
            silent.send_multipart([b"", bytes(8)])
        numbers, end = list[int](), time.monotonic() + 30
        while not numbers and time.monotonic() < end:  # they are encoded in a thread
            numbers = [n for n, _ in replayed(replay, 299)]
        assert numbers == [299]


# --- slow -----------------------------------------------------------------------------------------


def test_what_is_dropped_leaves_a_gap_in_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = waiting.Waiting(most=2)
    results = [queue.put(event(i)) for i in range(4)]
    assert results == [True, True, False, False]
    assert [batch.number for batch in queue.take()] == [0, 1]
    assert queue.put(event(4))
    assert [batch.number for batch in queue.take()] == [4]
    assert (queue.published, queue.dropped) == (3, 2)
    queue.free()


def test_a_slow_subscriber_holds_up_neither_the_engine_nor_others(
    need: EventNeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "MOST_SENT", 10)
    with publishing(need) as publisher, subscribed(need.url), subscribed(need.url) as quick:
        numbers = list[int]()
        for i in range(200):
            assert publisher.publish(event(i) * 1000)
            numbers.append(decoded(*quick.recv_multipart()[1:])[0])
    assert numbers == list(range(200))


def test_an_address_in_use_is_named(need: EventNeed) -> None:
    with publishing(need), pytest.raises(OptionError, match="--kv-events tcp://127.0.0.1"):
        zeromq.build(need)


def test_an_address_of_ip_version_6_is_bound(need: EventNeed) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            url = f"tcp://[::1]:{probe.getsockname()[1]}"
    except OSError:
        pytest.skip("this machine has no IPv6")
    zeromq.build(evolve(need, url=url)).close()
