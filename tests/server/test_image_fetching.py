"""Images from the network: only from hosts that are allowed, and never from inside of one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from attrs import evolve

from inferno.errors import RequestError
from inferno.images.limits import ImageLimits
from inferno.images.mediums import AUDIO
from inferno.server.chat import fetching
from inferno.server.chat.fetching import ImageFetcher, is_public, public_address

ALLOWED = ImageLimits(
    hosts=["http://images.example", "http://*.example.org", "secure.example"], max_bytes=10_000
)


class Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        self.asked.append((self.headers["Host"], self.path))
        name = self.path.strip("/").partition("?")[0]
        if name.startswith("to="):
            self.send_response(302)
            self.send_header("Location", name[3:].replace("|", "/"))
            self.end_headers()
        elif name == "large":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 20_000)
        elif name == "declared":
            self.send_response(200)
            self.send_header("Content-Length", "99999999999")
            self.end_headers()
        elif name == "drips":
            self.send_response(200)
            self.end_headers()
            for _ in range(200):
                time.sleep(0.05)
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return
        elif name == "image":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"bytes")
        else:
            self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """A web of one server: public names lead to it, and `inside.example.org` to this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    looked_up = list[str]()

    def look_up(host: str, port: int, **more: Any) -> list[Any]:
        looked_up.append(host)
        address = "127.0.0.1" if host.startswith("inside") else "93.184.215.14"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        assert address == ("93.184.215.14", 80), "only to what was checked"
        made = socket.socket()
        made.settimeout(timeout)
        made.connect(server.server_address)
        return made

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    Handler.asked = []
    yield Handler.asked
    server.shutdown()
    assert len(looked_up) <= len(Handler.asked) + 1, "a name is resolved once for each request"


def fetch(url: str, limits: ImageLimits = ALLOWED) -> bytes:
    fetcher = ImageFetcher(limits)
    try:
        return asyncio.run(fetcher.fetched(url, "messages[0].content[0]"))
    finally:
        fetcher.close()


def test_an_allowed_host_is_asked(web: list[tuple[str, str]]) -> None:
    assert fetch("http://images.example/image?a=1#part") == b"bytes"
    assert fetch("http://A.Example.org./image") == b"bytes"
    assert web[0] == ("images.example", "/image?a=1")


def test_audio_is_fetched_by_the_same_rules(web: list[tuple[str, str]]) -> None:
    async def fetched(url: str, limits: ImageLimits) -> bytes:
        return await ImageFetcher(limits).fetched(url, "messages[0].content[0]", AUDIO)

    assert asyncio.run(fetched("http://images.example/image", ALLOWED)) == b"bytes"
    with pytest.raises(RequestError, match="audio is not fetched from other.example") as caught:
        asyncio.run(fetched("http://other.example/image", ALLOWED))
    assert caught.value.code == "invalid_audio" and "audio/wav" in caught.value.remedy
    with pytest.raises(RequestError, match="the limit is"):
        small = evolve(ALLOWED, max_audio_bytes=4)
        asyncio.run(fetched("http://images.example/image", small))


def test_what_was_closed_may_fetch_again(web: list[tuple[str, str]]) -> None:
    """A server whose app starts twice."""
    fetcher, others = ImageFetcher(ALLOWED), {*threading.enumerate()}
    for _ in range(2):
        assert asyncio.run(fetcher.fetched("http://images.example/image", "image")) == b"bytes"
        fetcher.close()
        for thread in {*threading.enumerate()} - others:
            if thread.name.startswith("inferno fetch"):
                thread.join(5)
                assert not thread.is_alive(), "nothing is left of a server that has closed"


def test_redirects_among_allowed_hosts_are_followed(web: list[tuple[str, str]]) -> None:
    assert fetch("http://images.example/to=http:||b.example.org|image") == b"bytes"
    assert fetch("http://images.example/to=|image") == b"bytes"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://other.example/image", "not fetched from other.example"),
        ("http://secure.example/image", "by https only"),
        ("http://images.example/to=http:||secure.example|image", "by https only"),
        ("http://example.org.evil.example/image", "not fetched from"),
        ("http://images.example:8080/image", "not fetched from"),
        ("http://user:secret@images.example/image", "no host alone"),
        ("http:///image", "no host alone"),
        ("ftp://images.example/image", "ftp"),
        ("http://images.example/a\r\nHost: x", "control characters"),
        ("http://[::1/", "not a valid URL"),
        ("http://inside.example.org/image", "inside of a network"),
        ("http://images.example/to=http:||inside.example.org|image", "inside of a network"),
        ("http://images.example/to=http:||other.example|image", "not fetched from other.example"),
        ("http://images.example/to=file:||etc|passwd", "file"),
        ("http://images.example/missing", "answered 404"),
        ("http://images.example/large", "the limit is"),
        ("http://images.example/declared", "the limit is"),
    ],
)
def test_others_are_refused(url: str, reason: str, web: list[tuple[str, str]]) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        fetch(url)
    assert caught.value.param == "messages[0].content[0]" and caught.value.remedy


def test_redirects_end(web: list[tuple[str, str]]) -> None:
    url = "http://images.example/image"
    for _ in range(6):
        url = "http://images.example/to=" + url.removeprefix("http://images.example")
    url = "http://images.example/" + "to=|" * 6 + "image"
    with pytest.raises(RequestError, match="redirected more than"):
        fetch(url)


def test_a_server_that_drips_is_left(
    web: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SECONDS", 0.4)
    began = time.monotonic()
    with pytest.raises(RequestError, match=r"took more than 0.4 s"):
        fetch("http://images.example/drips")
    assert time.monotonic() - began < 5


def test_nothing_is_fetched_unless_it_is_allowed(web: list[tuple[str, str]]) -> None:
    with pytest.raises(RequestError, match="this server fetches none") as caught:
        fetch("http://images.example/image", ImageLimits())
    assert "--allow-image-urls" in caught.value.remedy and not web


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1"),
    ],
)
def test_addresses_inside_of_a_network_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_the_whole_internet_is() -> None:
    assert all(map(is_public, ("93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07::1")))


def test_one_address_inside_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("10.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: addresses)
    with pytest.raises(RequestError, match="inside of a network"):
        public_address("x.example", 80, "image")


def test_any_host_is_any_public_one() -> None:
    assert ImageLimits(hosts=["*"]).allows("anything.example")
    assert not ALLOWED.allows("example.org"), "what is below it, not itself"
