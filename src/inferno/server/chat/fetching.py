"""Fetches images and audio from the network, for the hosts that the operator allows.

A name is resolved once, every address that it has must be public, and the connection goes to the
address that was checked: a second look-up might give another. Each redirect is checked alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from urllib.parse import SplitResult, urljoin, urlsplit

from attrs import frozen

from inferno.errors import RequestError
from inferno.images.decoding import check_size, refused
from inferno.images.limits import ImageLimits
from inferno.images.mediums import IMAGE, Medium

SECONDS = 10.0
"""For an image or audio, with its redirects."""
_AT_ONCE, _REDIRECTS = 4, 4
_CHUNK = 2**16
_PORTS = {"http": 80, "https": 443}
_MOVED = (301, 302, 303, 307, 308)


class ImageFetcher:
    """Fetches a server's images and audio, in threads of its own, which are there from the first
    one on until it is closed. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(self, limits: ImageLimits) -> None:
        self.limits = limits
        self._threads: ThreadPoolExecutor | None = None

    async def fetched(self, url: str, param: str, medium: Medium = IMAGE) -> bytes:
        """Return what is at an address. Raises RequestError."""
        request = _Asked(param, medium)
        if not self.limits.hosts:
            raise request.refused(
                "is an address in the network, and this server fetches none",
                "Or start it with --allow-image-urls HOST.",
            )
        self._threads = self._threads or ThreadPoolExecutor(_AT_ONCE, "inferno fetch")
        loop, end = asyncio.get_running_loop(), time.monotonic() + SECONDS
        fetching = loop.run_in_executor(self._threads, _fetch, url, self.limits, request, end)
        try:
            return await asyncio.wait_for(fetching, SECONDS)
        except TimeoutError as error:
            raise request.too_slow() from error

    def close(self) -> None:
        """Fetch no more of what waits. What is being fetched ends within its time."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


@frozen
class _Asked:
    """What is fetched, and which field of the request has its address."""

    param: str
    medium: Medium

    def refused(self, cause: str, or_else: str = "") -> RequestError:
        """Return the error; the cause goes on after the field."""
        remedy = f"Send the {self.medium.name} itself: {self.medium.example}"
        whole = f"{self.param}{cause}" if cause.startswith(":") else f"{self.param} {cause}"
        return refused(whole, self.param, f"{remedy} {or_else}".strip(), self.medium)

    def too_slow(self) -> RequestError:
        return self.refused(f"took more than {SECONDS:g} s to fetch")

    def check_size(self, nbytes: int, limits: ImageLimits) -> None:
        """Raise RequestError for too many bytes."""
        check_size(nbytes, self.param, limits.most_bytes(self.medium), self.medium)


def _fetch(url: str, limits: ImageLimits, asked: _Asked, end: float) -> bytes:
    for _ in range(1 + _REDIRECTS):
        parts = _checked(url, limits, asked)
        try:
            with _connected(parts, asked, end) as connection:
                target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
                connection.putrequest("GET", target, skip_accept_encoding=True)
                connection.putheader("Accept", f"{asked.medium.name}/*")
                connection.putheader("User-Agent", "inferno")
                connection.endheaders()
                answer = connection.getresponse()
                if answer.status in _MOVED and (location := answer.headers.get("Location")):
                    url = urljoin(url, location)
                    continue
                if answer.status != http.client.OK:
                    raise asked.refused(f": {parts.hostname} answered {answer.status}")
                asked.check_size(int(answer.headers.get("Content-Length") or 0), limits)
                body = _body(answer, limits, asked)
                if time.monotonic() >= end:  # cut off: what came is not all
                    raise TimeoutError
                return body
        except (OSError, ValueError, http.client.HTTPException) as error:
            if time.monotonic() >= end or isinstance(error, TimeoutError):
                raise asked.too_slow() from error
            what = str(error)[:120] or type(error).__name__
            cause = f"cannot be fetched from {parts.hostname}: {what}"
            raise asked.refused(cause) from error
    raise asked.refused(f"is redirected more than {_REDIRECTS} times")


def _checked(url: str, limits: ImageLimits, asked: _Asked) -> SplitResult:
    """Return the parts of an address that may be fetched. Raises RequestError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise asked.refused("is not a valid URL") from error
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        shown = parts.scheme[:20] or "no scheme"
        cause = f"{asked.param} has {shown}, or no host alone"
        raise refused(cause, asked.param, "Give an https:// address.", asked.medium)
    plural = "images are" if asked.medium is IMAGE else "audio is"
    if not limits.allows(parts.hostname, parts.scheme) and limits.allows(parts.hostname):
        raise asked.refused(
            f": {plural} fetched from {parts.hostname[:100]} by https only",
            "Or give an https:// address.",
        )
    if port not in (None, *_PORTS.values()) or not limits.allows(parts.hostname, parts.scheme):
        raise asked.refused(
            f": {plural} not fetched from {parts.netloc[:100]}",
            f"Or start the server with --allow-image-urls {parts.hostname[:100]}.",
        )
    if any(ord(char) <= 32 or ord(char) == 127 for char in url):
        cause = f"{asked.param} has blanks or control characters"
        raise refused(cause, asked.param, "Encode them.", asked.medium)
    return parts


@contextlib.contextmanager
def _connected(
    parts: SplitResult, asked: _Asked, end: float
) -> Iterator[http.client.HTTPConnection]:
    """Connect to the address that was checked, until the end of the time."""
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    address = public_address(host, port, asked.param, asked.medium)
    if (left := end - time.monotonic()) <= 0:
        raise TimeoutError
    plain = socket.create_connection((address, port), timeout=left)
    # However slowly bytes drip: each restarts the socket's own timeout.
    watch = Timer(left, _shut, [plain])
    watch.daemon = True
    watch.start()
    try:
        connection = http.client.HTTPConnection(host, port)
        connection.sock = plain
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            connection.sock = secure.wrap_socket(plain, server_hostname=host)
            connection.default_port = _PORTS["https"]  # for the Host header
        yield connection
        connection.close()
    finally:
        watch.cancel()
        plain.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _body(answer: http.client.HTTPResponse, limits: ImageLimits, asked: _Asked) -> bytes:
    body = bytearray()
    while chunk := answer.read(_CHUNK):
        body += chunk
        asked.check_size(len(body), limits)
    return bytes(body)


def public_address(host: str, port: int, param: str, medium: Medium = IMAGE) -> str:
    """Return an address of a host, all of whose addresses are public. Raises RequestError."""
    request = _Asked(param, medium)
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise request.refused(f": {host[:100]} is not found") from error
    addresses = [str(each[4][0]) for each in entries]
    if not addresses or not all(map(is_public, addresses)):
        raise request.refused(f": {host[:100]} is an address inside of a network")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address belongs to the whole internet, and not to this machine or its network,
    in whatever way it is written."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
