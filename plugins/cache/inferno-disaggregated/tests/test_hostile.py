"""Whoever connects, and whatever is sent: no end crashes, hangs, or takes what is not meant."""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zmq
from hypothesis import given
from hypothesis import strategies as st

from inferno.errors import OptionError
from inferno_disaggregated import messages
from inferno_disaggregated.address import own_folder, parse
from inferno_disaggregated.client import Asked, Client, Ended
from inferno_disaggregated.messages import Foreign, Session
from inferno_disaggregated.server import Note, Run, Server, Transfer

LAYOUT, SIZES = '{"dtype": "a"}', (8, 16)


def until(what: Callable[[], object]) -> None:
    for _ in range(1000):
        if what():
            return
        time.sleep(0.005)
    raise AssertionError("it never comes")


@pytest.fixture
def url() -> str:
    return f"shm://test-{secrets.token_hex(6)}"


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    server = Server(parse(url), b"token", LAYOUT, 1 << 20)
    yield server
    server.close()


class Raw:
    """A peer that says what it is told to."""

    def __init__(self, kind: int, endpoint: str) -> None:
        self.context = zmq.Context[Any]()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 5000)
        if kind == zmq.ROUTER:
            self.socket.bind(endpoint)
        else:
            self.socket.connect(endpoint)

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def stranger(url: str, server: Server) -> Iterator[Raw]:
    raw = Raw(zmq.DEALER, parse(url).endpoint)
    yield raw
    raw.close()


def test_another_layout_is_told_once_by_what_differs(
    url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    heads = {"k": "[" + "2, 1, " * 40 + "'bfloat16', 1]"}
    server.layout = json.dumps({"cache": heads, "isq": None})
    other = {"k": heads["k"].replace("bfloat16", "int8")}
    for _ in range(2):
        client = Client(parse(url), url, b"token", json.dumps({"cache": other, "isq": None}), SIZES)
        until(lambda: any("refuses" in each.message for each in caplog.records))  # its own word
        client.close()
        caplog.handler.records = [r for r in caplog.records if "refuses" not in r.message]
    [line] = [each.message for each in caplog.records if "cannot be exchanged" in each.message]
    assert "int8" in line and "bfloat16" in line and "isq" not in line and len(line) < 300


def greet(raw: Raw, token: bytes = b"token") -> Session:
    nonce = secrets.token_bytes(16)
    raw.socket.send(messages.encode(messages.Hello(messages.VERSION, nonce)))
    challenge = messages.decode(raw.socket.recv(), of_prefill=True)
    return Session.of(token, nonce, challenge.nonce, is_prefill=False)


def still_serves(url: str, server: Server) -> None:
    client = Client(parse(url), url, b"token", LAYOUT, SIZES)
    until(lambda: client.joined)
    client.ask(Asked(messages.Ask(0, bytes(8), [1], "", ""), time.monotonic() + 60))
    until(lambda: server.news)
    client.close()


HELLO = messages.encode(messages.Hello(messages.VERSION, bytes(16)))
GARBAGE = {
    "nothing": [b""],
    "noise": [random.Random(1).randbytes(1000)],
    "many frames": [b"x"] * 500,
    "not sealed": [messages.encode(messages.Ask(0, bytes(8), [1], "", ""))],
    "cut": [HELLO[:-1]],
    "another version": [messages.encode(messages.Hello(99, bytes(16)))],
    "deep": [b"\x91" * 100_000],
    "a map that is said to be huge": [b"\xdf\xff\xff\xff\xff"],
    "a short nonce": [HELLO.replace(bytes(16), bytes(3))],
    "a wrong code": [messages.encode(messages.Ping()), bytes(16)],
    "an empty code": [messages.encode(messages.Ping()), b""],
}


@pytest.mark.parametrize("name", GARBAGE)
def test_the_prefilling_end_survives(name: str, url: str, server: Server, stranger: Raw) -> None:
    stranger.socket.send_multipart(GARBAGE[name])
    assert messages.decode(stranger.socket.recv(), of_prefill=True) == messages.Unknown()
    assert not server.news
    still_serves(url, server)


def join() -> messages.Join:
    return messages.Join(LAYOUT, False)


TURNS: dict[str, Callable[[], Sequence[Any]]] = {
    "asks before it has joined": lambda: [messages.Ask(0, bytes(8), [1], "", "")],
    "joins twice": lambda: [join(), join()],
    "asks for one transfer twice": lambda: [join(), *[messages.Ask(0, bytes(8), [1], "", "")] * 2],
    "has half a token": lambda: [join(), messages.Ask(0, bytes(7), [1], "", "")],
    "has no tokens": lambda: [join(), messages.Ask(0, b"", [1], "", "")],
    "has a short name": lambda: [join(), messages.Ask(0, bytes(8), [1], "", "", b"\x10")],
    "maps what it was not given": lambda: [join(), messages.Mapped(True)],
    "wants a negative group": lambda: [join(), messages.Ask(0, bytes(8), [-1], "", "")],
    "says what is not its to say": lambda: [join(), messages.Pong()],
}


@pytest.mark.parametrize("name", TURNS)
def test_one_that_knows_the_token_and_breaks_the_rules_is_cut_off(
    name: str, url: str, server: Server, stranger: Raw
) -> None:
    session = greet(stranger)
    for message in TURNS[name]():
        stranger.socket.send_multipart(session.seal(message))
    answers = list[list[bytes]]()
    while len(answers := [*answers, stranger.socket.recv_multipart()][-9:]) < 9:
        if len(answers[-1]) == 1:
            break
    assert messages.decode(answers[-1][0], of_prefill=True) == messages.Unknown()
    still_serves(url, server)


def test_another_token_joins_nothing(server: Server, stranger: Raw) -> None:
    session = greet(stranger, b"another")
    stranger.socket.send_multipart(session.seal(join()))
    assert messages.decode(stranger.socket.recv(), of_prefill=True) == messages.Unknown()


def test_a_message_cannot_be_said_again_or_changed() -> None:
    nonces = secrets.token_bytes(16), secrets.token_bytes(16)
    ends = [Session.of(b"t", *nonces, is_prefill=each) for each in (False, True)]
    first, second = (ends[0].seal(messages.Release(i)) for i in range(2))
    assert ends[1].open(first) == messages.Release(0)
    with pytest.raises(Foreign, match="code"):
        ends[1].open(first)
    mirrored = Session.of(b"t", *nonces, is_prefill=False)
    with pytest.raises(Foreign, match="code"):
        mirrored.open(second)
    changed = [second[0][:-1] + b"\x05", second[1]]
    with pytest.raises(Foreign, match="code"):
        Session.of(b"t", *nonces, is_prefill=True).open(changed)


@given(st.binary(max_size=200), st.booleans())
def test_bytes_are_a_message_or_foreign(data: bytes, of_prefill: bool) -> None:
    try:
        message = messages.decode(data, of_prefill=of_prefill)
    except Foreign:
        return
    assert messages.decode(messages.encode(message), of_prefill=of_prefill) == message


# --- a prefilling end that does as it likes -------------------------------------------------------


class FalsePrefiller(Raw):
    """It lets a client join, and then says what it is told to."""

    def __init__(self, url: str) -> None:
        own_folder(parse(url).path or Path())
        super().__init__(zmq.ROUTER, parse(url).endpoint)

    def meet(self) -> None:
        self.peer, hello = self.socket.recv_multipart()
        nonce = secrets.token_bytes(16)
        first = messages.decode(hello, of_prefill=False)
        self.session = Session.of(b"token", first.nonce, nonce, is_prefill=True)
        self.socket.send_multipart([self.peer, messages.encode(messages.Challenge(nonce))])
        self.session.open(self.socket.recv_multipart()[1:])
        self.say(messages.Welcome("", 0))

    def say(self, message: Any, *more: bytes) -> None:
        self.socket.send_multipart([self.peer, *self.session.seal(message), *more])


BODY = bytes(range(16))
SUM = xxhash.xxh3_64_intdigest(BODY) >> 1
LIES: dict[str, tuple[Any, bytes | None]] = {
    "of a block that nobody asked for": (messages.Blocks(0, 0, [0, 2], SUM, -1), BODY),
    "of a token that was not requested": (messages.First(0, 5), None),
    "of a block beyond the prompt": (messages.Blocks(0, 0, [0, 1 << 40], SUM, -1), BODY),
    "twice the same": (messages.Blocks(0, 0, [0, 0], SUM, -1), BODY),
    "of no group": (messages.Blocks(0, 7, [0, 1], SUM, -1), BODY),
    "of no block": (messages.Blocks(0, 0, [], SUM, -1), b""),
    "too short": (messages.Blocks(0, 0, [0, 1], SUM, -1), BODY[:-1]),
    "too long": (messages.Blocks(0, 0, [0, 1], SUM, -1), BODY + b"x"),
    "without a frame": (messages.Blocks(0, 0, [0, 1], SUM, -1), None),
    "in memory that there is not": (messages.Blocks(0, 0, [0, 1], SUM, 1 << 60), None),
    "not a message of a prefilling end": (messages.Ping(), None),
}


@pytest.fixture
def false(url: str) -> Iterator[FalsePrefiller]:
    false = FalsePrefiller(url)
    yield false
    false.close()


@pytest.mark.parametrize("name", LIES)
def test_the_decoding_end_takes_no_parts(name: str, url: str, false: FalsePrefiller) -> None:
    client = Client(parse(url), url, b"token", LAYOUT, SIZES)
    false.meet()
    until(lambda: client.joined)
    client.ask(Asked(messages.Ask(0, bytes(8), [1, 1, 0], "", ""), time.monotonic() + 60))
    until(lambda: client._open)
    message, body = LIES[name]
    false.say(message, *(() if body is None else (body,)))
    until(lambda: client.news)
    [ended] = client.news.take()
    assert isinstance(ended, Ended) and ended.cause == "lost"
    assert not client.joined
    client.close()


def test_noise_from_the_prefilling_end_is_no_end_of_the_other(
    url: str, false: FalsePrefiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferno_disaggregated.client._AGAIN", 0.2)
    client = Client(parse(url), url, b"token", LAYOUT, SIZES)
    draw = random.Random(2)
    for _ in range(3):
        peer, *_ = false.socket.recv_multipart()
        for _ in range(50):
            frames = [draw.randbytes(draw.randrange(60)) for _ in range(draw.randrange(1, 4))]
            false.socket.send_multipart([peer, *frames])
    assert not client.joined and client._thread.is_alive()
    false.close()
    server = Server(parse(url), b"token", LAYOUT, 1 << 20)
    until(lambda: client.joined)
    client.close()
    server.close()


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, endpoint",
    [
        ("tcp://10.0.0.1:7000", "tcp://10.0.0.1:7000"),
        ("http://host:7000/", "tcp://host:7000"),
        ("tcp://[::1]:7000", "tcp://[::1]:7000"),
        ("file:///run/a.sock", "ipc:///run/a.sock"),
        ("ipc:///run/a.sock", "ipc:///run/a.sock"),
    ],
)
def test_addresses(url: str, endpoint: str) -> None:
    assert parse(url).endpoint == endpoint


@pytest.mark.parametrize(
    "url",
    ["", "pd", "tcp://host", "tcp://host:0", "tcp://host:70000", "tcp://a b:1", "shm://", "shm://../x",
     "file://x", "ipc:///" + "x" * 120, "tcp://host:1;tcp://other:2", "tcp://host:²"],
)  # fmt: skip
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="no address"):
        parse(url)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(OptionError, match="others may write"):
        own_folder(tmp_path / "socket")


# --- bounds ---------------------------------------------------------------------------------------


def test_bytes_that_wait_to_be_sent_are_counted_until_they_are(url: str, server: Server) -> None:
    client = Client(parse(url), url, b"token", LAYOUT, SIZES)
    until(lambda: client.joined)
    client.ask(Asked(messages.Ask(0, bytes(8), [1] * 4, "", ""), time.monotonic() + 60))
    until(lambda: server.news)
    [transfer] = server.news.take()
    assert isinstance(transfer, Transfer)
    peer = transfer.peer
    peer.wait(32)
    server.post(Run(transfer, 0, [0, 1, 2, 3], np.zeros((4, 8), np.uint8), -1))
    server.post(Note(transfer, messages.Done(0, "", "")))
    until(lambda: not peer.waiting)
    client.release(0)
    until(lambda: not peer.transfers)
    peer.wait(32)
    server.post(Run(transfer, 0, [0, 1, 2, 3], np.zeros((4, 8), np.uint8), -1))
    until(lambda: not peer.waiting)
    client.close()


def test_the_end_of_a_prompt_that_was_let_go_is_not_that_of_the_next_of_its_number(
    url: str, server: Server
) -> None:
    client = Client(parse(url), url, b"token", LAYOUT, SIZES)
    until(lambda: client.joined)
    arrivals = list[Transfer]()

    def come() -> list[Transfer]:
        arrivals.extend(news for news in server.news.take() if isinstance(news, Transfer))
        return arrivals

    def ask() -> None:
        client.ask(Asked(messages.Ask(0, bytes(8), [1], "", ""), time.monotonic() + 60))

    ask()
    until(come)
    client.release(0)
    until(lambda: not arrivals[0].peer.transfers)
    ask()
    until(lambda: len(come()) == 2)
    server.post(Note(arrivals[0], messages.Done(0, "full", "")))
    server.post(Note(arrivals[1], messages.Done(0, "", "")))
    until(lambda: client.news)
    (ended,) = client.news.take()
    assert isinstance(ended, Ended) and ended.cause == ""
    client.close()
