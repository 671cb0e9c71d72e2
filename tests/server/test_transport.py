"""What a connection bears: slow, huge and cut-off requests, half-closed sockets, old clients."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.conftest import Live, wait_until
from tests.server.server_fakes import FakeLLM

from inferno.server.http.transport import Limits, _unless_gone, peer_uid

Start = Callable[..., Live]
QUICK = Limits(head_seconds=0.3, body_seconds=0.3)
BODY = json.dumps({"prompt": "x", "max_tokens": 8}).encode()


def head(length: int = len(BODY), version: str = "1.1", more: str = "") -> bytes:
    return (
        f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


def connected(live: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=10)


def read_all(client: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    chunks = []
    while chunk := client.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def read_error(client: socket.socket) -> tuple[int, str]:
    """The status and code of an error answer, after which the server closes."""
    first, _, rest = read_all(client).partition(b"\r\n")
    return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nHost: lo", 408, "head_timeout"),
        (head(1000) + b"{", 408, "body_timeout"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 431, "head_too_large"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 431, "head_too_large"),
        (b"never HTTP\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n", 400, "invalid_http"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\n{\r\n0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
            431,
            "head_too_large",
        ),
    ],
)
def test_a_request_that_is_slow_or_huge_or_no_http_is_refused(
    live: Start, sent: bytes, status: int, code: str
) -> None:
    with connected(live(limits=QUICK)) as client:
        client.sendall(sent)
        assert read_error(client) == (status, code)


def test_a_connection_that_sends_nothing_is_closed(live: Start) -> None:
    with connected(live(limits=QUICK)) as client:
        assert client.recv(1) == b""


def test_a_head_and_a_body_in_small_pieces_are_fine(live: Start) -> None:
    with connected(live(limits=Limits())) as client:
        for byte in head(more="Connection: close\r\n") + BODY:
            client.sendall(bytes([byte]))
        assert read_all(client).startswith(b"HTTP/1.1 200")


def test_a_second_request_on_a_connection_has_the_same_time(live: Start) -> None:
    with connected(live(limits=QUICK)) as client:
        client.sendall(head() + BODY)
        first = HTTPResponse(client)
        first.begin()
        assert first.status == 200 and first.read()
        client.sendall(head()[:30])
        assert read_error(client) == (408, "head_timeout")


def test_a_client_that_leaves_within_its_body_costs_one_debug_line(
    live: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "inferno.server")
    server = live()
    with connected(server) as client:
        client.sendall(head(1000) + b'{"prompt":')
    wait_until(lambda: bool(caplog.records))
    [record] = [r for r in caplog.records if r.name == "inferno.server"]
    assert record.levelno == logging.DEBUG and "left" in record.message and not record.exc_info
    assert server.post("/v1/completions", prompt="x").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", [pytest.param("1.0", marks=pytest.mark.slow), "1.1"])
def test_a_client_that_has_closed_its_side_gets_its_answer(
    live: Start, version: str, stream: bool
) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 8, "stream": stream}).encode()
    with connected(live(FakeLLM(delay=0.15))) as client:
        client.sendall(head(len(body), version) + body)
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    *interim, final, payload = answer.split(
        b"\r\n\r\n", 2 if version == "1.1" and not stream else 1
    )
    assert all(each == b"HTTP/1.1 100 Continue" for each in interim)
    assert final.startswith(b"HTTP/1.1 200") and b"Hel" in payload


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_ends_its_generation(live: Start, stream: bool) -> None:
    server = live(FakeLLM(delay=0.02, endless=True))
    body = json.dumps({"prompt": "x", "max_tokens": 10**6, "stream": stream}).encode()
    with connected(server) as client:
        client.sendall(head(len(body)) + body)
        wait_until(lambda: bool(server.llm.live))
    wait_until(lambda: bool(server.llm.aborted))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_to_http_1_0_has_no_chunks_and_ends_with_the_connection(
    live: Start, stream: bool
) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 8, "stream": stream}).encode()
    with connected(live()) as client:
        client.sendall(head(len(body), "1.0") + body)
        headers, _, payload = read_all(client).lower().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers and b"connection: close" in headers
    if stream:
        assert payload.startswith(b"data: {") and payload.endswith(b"data: [done]\n\n")
    else:
        assert json.loads(payload)["object"] == "text_completion"


def test_an_answer_that_cannot_be_written_to_a_client_that_is_gone_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("unable to perform operation on a closed transport")

    async def check(*, closing: bool) -> bool:
        transport = SimpleNamespace(is_closing=lambda: closing)
        cycle: Any = SimpleNamespace(disconnected=False, transport=transport)
        none: Any = None
        await _unless_gone(app, cycle, none, none, none)
        return bool(cycle.disconnected)

    with caplog.at_level(logging.DEBUG):
        assert asyncio.run(check(closing=True))
        with pytest.raises(RuntimeError):
            asyncio.run(check(closing=False))
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_pipelined_requests_are_answered_in_order(live: Start) -> None:
    with connected(live()) as client:
        client.sendall((head() + BODY) * 3 + head(more="Connection: close\r\n") + BODY)
        assert read_all(client).count(b"text_completion") == 4


def test_the_user_at_the_other_end_of_a_unix_socket_is_known() -> None:
    here, there = socket.socketpair()
    with here, there, socket.socket() as tcp:
        for peer, uid in ((here, os.getuid()), (tcp, None)):
            transport: Any = SimpleNamespace(get_extra_info={"socket": peer}.get)
            assert peer_uid(transport) == uid
