"""Real sockets: clients that leave, engines that die, readers that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from typing import Any

import httpx
import pytest
from tests.server.conftest import Live, wait_until
from tests.server.server_fakes import FakeLLM

from inferno.server.app import models_of

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS = 10**9


def connect(server: Live, path: str = CHAT, **body: Any) -> socket.socket:
    """Sends a request and reads nothing."""
    content = json.dumps({"messages": MESSAGES, "max_tokens": ENDLESS, **body}).encode()
    sock = socket.create_connection(("127.0.0.1", server.port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    sock.sendall(head.encode() + content)
    return sock


def leave(sock: socket.socket, how: str) -> None:
    if how == "rst":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("delay", [0.0, pytest.param(0.002, marks=pytest.mark.slow)])
@pytest.mark.parametrize("body", [{"stream": True}, {"stream": False}, {"stream": True, "n": 3}])
def test_a_disconnect_ends_the_generation(
    live: Any, how: str, delay: float, body: dict[str, Any]
) -> None:
    # with no delay there is always a token ready: the stream never sleeps, so it cannot be
    # cancelled
    server = live(FakeLLM(endless=True, delay=delay))
    clients = [connect(server, **body) for _ in range(4)]
    wait_until(lambda: len(server.llm.live) == 4)
    for sock in clients:
        if body["stream"]:
            sock.recv(2000)
        leave(sock, how)
    wait_until(
        lambda: not server.llm.live and models_of(server.app).hosted[0].limiter.in_flight == 0
    )
    made = server.llm.made
    assert server.post(CHAT, messages=MESSAGES, max_tokens=3).status_code == 200
    assert server.llm.made <= made + 3


def test_a_disconnect_aborts_all_prompts_of_the_request(live: Any) -> None:
    server = live(FakeLLM(endless=True, delay=0.002))
    sock = connect(server, "/v1/completions", prompt=["a", "b", "c"], stream=True, messages=None)
    wait_until(lambda: bool(server.llm.live))
    leave(sock, "fin")
    wait_until(lambda: not server.llm.live)


def test_disconnects_are_counted(live: Any) -> None:
    server = live(FakeLLM(endless=True, delay=0.002))
    sock = connect(server, stream=True, n=2)
    wait_until(lambda: bool(server.llm.live))
    leave(sock, "rst")
    wait_until(lambda: not server.llm.live)
    assert (
        'request_success_total{finished_reason="abort",model_name="fake"} 2.0'
        in httpx.get(server.url + "/metrics").text
    )


def test_an_engine_that_dies_is_told_of_in_the_stream(live: Any) -> None:
    events = live(FakeLLM(dies_after=2)).events(CHAT, messages=MESSAGES)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "Hello "
    assert events[-1]["error"]["code"] == "engine_restarting"
    assert events[-1]["error"]["type"] == "unavailable_error"


def test_what_breaks_inside_ends_the_stream_with_an_error_that_tells_nothing(live: Any) -> None:
    for path, body in ((CHAT, {"messages": MESSAGES}), ("/v1/completions", {"prompt": ["a", "b"]})):
        events = live(FakeLLM(fails_after=1)).events(path, **body)
        assert events[-1]["error"] == {
            "message": "Internal server error.",
            "type": "server_error",
            "param": None,
            "code": None,
        }


def test_sixty_four_streams_at_once_each_get_their_own(live: Any) -> None:
    server = live(FakeLLM(delay=0.001))

    async def one(http: httpx.AsyncClient, i: int) -> str:
        body = {"prompt": f"{i} ", "echo": True, "stream": True}
        text = ""
        async with http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        return text

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=30) as http:
            return await asyncio.gather(*[one(http, i) for i in range(64)])

    assert asyncio.run(all_of_them()) == [f"{i} Hello there" for i in range(64)]


def test_nothing_piles_up_for_a_client_that_does_not_read(live: Any) -> None:
    server = live(FakeLLM(endless=True))
    sock = connect(server, stream=True)
    wait_until(lambda: server.llm.made > 0)
    made = -1
    while made != server.llm.made:  # until the sockets are full
        made = server.llm.made
        threading.Event().wait(0.3)
    assert made < 10**6
    assert httpx.get(server.url + "/health").status_code == 200
    leave(sock, "fin")
    wait_until(lambda: not server.llm.live)


def test_silence_is_filled_with_comments(live: Any) -> None:
    events = live(FakeLLM(delay=0.2), ping_seconds=0.05).events(
        CHAT, messages=MESSAGES, max_tokens=3
    )
    role, *pings, text, finish, done = events
    assert set(pings) == {": ping"}
    assert text["choices"][0]["delta"] == {"content": "Hel"}
    assert (finish["choices"][0]["finish_reason"], done) == ("length", "[DONE]")


def test_a_stream_is_not_to_be_buffered_or_cached(live: Any) -> None:
    server = live()
    with httpx.stream(
        "POST", server.url + CHAT, json={"messages": MESSAGES, "stream": True}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert len(response.headers["x-request-id"]) == 32
        response.read()


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_still_runs_when_the_server_stops_gets_an_error(
    live: Any, stream: bool
) -> None:
    server = live(FakeLLM(endless=True, delay=0.002))
    answers: list[httpx.Response] = []
    body = {"messages": MESSAGES, "stream": stream, "max_tokens": ENDLESS}
    asker = threading.Thread(
        target=lambda: answers.append(httpx.post(server.url + CHAT, json=body, timeout=20))
    )
    asker.start()
    wait_until(lambda: server.llm.made > 0)
    models_of(server.app).hosted[0].limiter.expire()
    asker.join(20)
    assert answers[0].status_code == (200 if stream else 503)
    assert "server_shutting_down" in answers[0].text


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({"request_timeout": 0.1}, {}),
        ({}, {"timeout": 0.1}),
        ({"request_timeout": 0.1}, {"timeout": 60}),
    ],
)
def test_an_answer_that_takes_too_long_ends_with_an_error(
    live: Any, options: dict[str, Any], body: dict[str, Any]
) -> None:
    server = live(FakeLLM(endless=True, delay=0.02), **options)
    request = {"prompt": "x", "max_tokens": 10**6, **body}
    whole = server.post("/v1/completions", **request)
    assert whole.status_code == 504 and whole.json()["error"]["code"] == "request_timeout"
    assert whole.headers["x-should-retry"] == "false"
    *_, last = server.events("/v1/completions", **request)
    assert last["error"]["code"] == "request_timeout"
    assert len(server.llm.aborted) == 2
