"""Whatever one client sends, the others' streams go on: it is refused before it costs much."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import Live
from tests.server.server_fakes import FakeLLM

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGE = {"role": "user", "content": "hi"}


class Ticking:
    """A stream that gets a token every few milliseconds, and the longest time between two."""

    def __init__(self, url: str) -> None:
        self.longest = 0.0
        self.tokens = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(url,))
        self._thread.start()
        while not self.tokens:
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()

    def reset(self) -> None:
        self.longest = 0.0

    def _run(self, url: str) -> None:
        body = {"prompt": "x", "max_tokens": 10**9, "stream": True}
        last = time.monotonic()
        with httpx.stream("POST", url + COMPLETIONS, json=body, timeout=60) as response:
            for _ in response.iter_lines():
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now
                self.tokens += 1
                if self._stopped:
                    return


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    live = Live(FakeLLM(endless=True, delay=0.02, max_model_len=1024))
    yield live
    live.stop()


@pytest.fixture(scope="module")
def ticking(server: Live) -> Iterator[Ticking]:
    stream = Ticking(server.url)
    yield stream
    stream.stop()


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "10 MB to tokenize": ("/tokenize", lambda: b'{"prompt": "%b"}' % (b"word " * 2_000_000)),
    "10 MB to count": ("/tokenize", lambda: b'{"content": "%b"}' % (b"word " * 2_000_000)),
    "a prompt of 10 MB": (COMPLETIONS, lambda: b'{"prompt": "%b"}' % (b"word " * 2_000_000)),
    "a message of 10 MB": (
        CHAT,
        lambda: b'{"messages": [{"role": "user", "content": "%b"}]}' % (b"word " * 2_000_000),
    ),
    "100 000 messages": (
        CHAT,
        lambda: b'{"messages": [%b]}' % b",".join([b'{"role":"user","content":"x"}'] * 100_000),
    ),
    "a million messages": (
        CHAT,
        lambda: b'{"messages": [%b]}' % b",".join([b'{"role":"user","content":"x"}'] * 1_000_000),
    ),
    "50 000 parts": (
        CHAT,
        lambda: (
            b'{"messages": [{"role": "user", "content": [%b]}]}'
            % b",".join([b'{"type":"text","text":"x"}'] * 50_000)
        ),
    ),
    "8 million ids": ("/detokenize", lambda: b'{"tokens": [%b]}' % b",".join([b"65"] * 8_000_000)),
    "900 000 ids": ("/detokenize", lambda: b'{"tokens": [%b]}' % b",".join([b"65"] * 900_000)),
    "a prompt of 900 000 ids": (
        COMPLETIONS,
        lambda: b'{"prompt": [%b]}' % b",".join([b"65"] * 900_000),
    ),
    "900 000 prompts": (COMPLETIONS, lambda: b'{"prompt": [%b]}' % b",".join([b'"x"'] * 900_000)),
    "90 000 prompts of ids": (
        COMPLETIONS,
        lambda: b'{"prompt": [%b]}' % b",".join([b"[65]"] * 90_000),
    ),
    "100 000 stop strings": (
        COMPLETIONS,
        lambda: b'{"prompt": "x", "stop": [%b]}' % b",".join([b'"ab"'] * 100_000),
    ),
    "a stop string of a megabyte": (
        COMPLETIONS,
        lambda: b'{"prompt": "x", "stop": "%b"}' % (b"x" * 1_000_000),
    ),
    "900 000 fields": (
        COMPLETIONS,
        lambda: b'{"prompt": "x", %b}' % b",".join([b'"f%d":1' % i for i in range(900_000)]),
    ),
    "lists 900 deep": (
        "/tokenize",
        lambda: b'{"messages": [], "chat_template_kwargs": {"x": %b%b}}' % (b"[" * 900, b"]" * 900),
    ),
    "objects 100 000 deep": (COMPLETIONS, lambda: b'{"x":' * 100_000 + b"1" + b"}" * 100_000),
    "60 MB of one string": (COMPLETIONS, lambda: b'{"prompt": "%b"}' % (b"x" * 60_000_000)),
    "100 MB": (COMPLETIONS, lambda: b'{"prompt": "%b"}' % (b"x" * 100_000_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_refused_and_no_stream_waits(
    name: str, server: Live, ticking: Ticking
) -> None:
    path, make = HOSTILE[name]
    body = make()
    ticking.reset()
    headers = {"Content-Type": "application/json"}
    try:
        answer = httpx.post(server.url + path, content=body, headers=headers, timeout=60)
    except httpx.WriteError:  # refused and closed before it was sent
        assert len(body) > 64 * 2**20
    else:
        assert answer.status_code == (413 if len(body) > 64 * 2**20 else 400), answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert len(answer.content) < 3000 and error["type"] == "invalid_request_error"
    assert httpx.get(server.url + "/health", timeout=60).status_code == 200
    assert ticking.longest < 3, "seconds: it was 10 to 40, and a busy machine needs some"
