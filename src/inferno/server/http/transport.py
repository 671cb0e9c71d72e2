"""The HTTP protocol on a connection: uvicorn's, with what a server needs if anyone can reach it.

A request's head and body have limits of size and time. A client that has closed its side of the
connection still gets its answer. HTTP/1.0 clients get no chunked responses. While the server
drains, each answer ends its connection.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import uuid
from functools import partial
from typing import Any

import httptools
import msgspec
from attrs import define, frozen
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from inferno.server.access.keys import PEER_UID
from inferno.server.http.apis import Apis

log = logging.getLogger("inferno.server")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_GONE_SECONDS = 0.1
"""Seconds between checks whether a client that has closed its side is still there."""


@frozen(kw_only=True)
class Limits:
    """Limits of one request."""

    head_bytes: int = 64 * 2**10
    head_seconds: float = 20.0
    body_seconds: float = 30.0
    """Time for a body, in addition to that for its bytes at `body_rate`."""
    body_rate: float = 16 * 2**10
    """Bytes per second that a client must reach."""


@define
class Door:
    """What all connections of a server share."""

    limits: Limits = Limits()
    apis: Apis = Apis()
    """Whose formats errors have."""
    draining: bool = False
    """New requests are answered, but each answer ends its connection."""
    closing: bool = False
    """Connections no longer wait for a request."""

    def protocol(self, **given: Any) -> Connection:
        """Make the protocol of one connection, for uvicorn's `http` option."""
        return Connection(self, **given)


class Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, door: Door, **given: Any) -> None:
        super().__init__(**given)
        self._door, self._limits = door, door.limits
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False
        self._head_bytes = self._body_bytes = 0
        self._body_began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if (uid := peer_uid(transport)) is not None:
            self.app_state = {**self.app_state, PEER_UID: uid}
        self._set_timer(self._limits.head_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > self._limits.head_bytes:
            self._refuse_head()
        elif self._in_head and self._timer is None:
            self._set_timer(self._limits.head_seconds, self._head_is_late)
        elif self._in_body and self._timer is None:
            self._body_began, self._body_bytes = self.loop.time(), 0
            self._set_timer(self._limits.body_seconds, self._look_at_body)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for the answer, if the whole request is here."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering or self._in_head or self._in_body or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        # A client that has closed both sides looks the same, until its machine rejects a packet:
        # an interim response, which clients skip, if nothing else is being sent.
        if not self.cycle.response_started and self.scope["http_version"] != "1.0":
            self.transport.write(_CONTINUE)
        self._set_timer(_GONE_SECONDS, self._look_at_client)
        return True

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if sum(name == b"host" for name, _ in self.headers) > 1:
            self._refuse(400, "the request has several Host headers", "Send one.", "invalid_http")
            raise httptools.HttpParserError("refused")
        size = len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers)
        if size > self._limits.head_bytes:
            self._refuse_head()
            raise httptools.HttpParserError("refused")
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        super().on_headers_complete()
        if self._door.draining:
            self.cycle.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            super().on_header(name, value)
            return
        self._head_bytes += len(name) + len(value) + 4  # of trailers, which nobody reads
        if self._head_bytes > self._limits.head_bytes:
            self._refuse_head()
            raise httptools.HttpParserError("refused")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._in_head = self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "Send HTTP/1.1.", "invalid_http")

    def shutdown(self) -> None:
        """Close the connection, or let its answer end it."""
        if self._door.closing and (self._in_head or self._in_body):
            self.transport.close()
        elif self._door.closing or (self.cycle is not None and not self._in_head):
            super().shutdown()
        # else its first request may be on its way

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = partial(_until_close, app, cycle)
        app = partial(_unless_gone, app, cycle)
        super()._start_asgi_task(cycle, app)

    def _head_is_late(self) -> None:
        if not self._in_head:
            self.transport.close()  # it has sent nothing
            return
        self._refuse(408, "the request's head took too long", "Send it at once.", "head_timeout")

    def _look_at_body(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # by us
            self._set_timer(self._limits.body_seconds, self._look_at_body)
            return
        allowed = self._limits.body_seconds + self._body_bytes / self._limits.body_rate
        left = self._body_began + allowed - self.loop.time()
        if left > 0:
            self._set_timer(left, self._look_at_body)
            return
        self._refuse(408, "the request's body took too long", "Send it faster.", "body_timeout")

    def _look_at_client(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        if _is_reset(self.transport.get_extra_info("socket").fileno()):
            self.transport.abort()
            return
        self._set_timer(_GONE_SECONDS, self._look_at_client)

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            "the request's head is too large",
            f"Send at most {self._limits.head_bytes} bytes.",
            "head_too_large",
        )

    def _refuse(self, status: int, cause: str, remedy: str, code: str) -> None:
        """Answer with an error and close the connection."""
        if self.transport.is_closing():
            return
        error = {
            "message": f"{cause}. {remedy}",
            "type": "invalid_request_error",
            "param": None,
            "code": code,
        }
        path = self.url.decode("latin-1") if self._in_body else ""
        content = self._door.apis.formatted(path, status, {"error": error}, uuid.uuid4().hex)
        body = msgspec.json.encode(content)
        if self.cycle is None or self.cycle.response_complete or self._in_body:
            if self._in_body and self.cycle is not None and self.cycle.response_started:
                self.transport.close()
                return
            head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            self.transport.write(
                STATUS_LINE[status] + head + b"x-should-retry: false\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(body)
        self.transport.close()

    def _set_timer(self, seconds: float, call: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, call)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _unless_gone(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Run the app. That an answer cannot be written because its client is gone is no error of the
    server."""
    try:
        await app(scope, receive, send)
    except (RuntimeError, OSError) as error:
        if not (cycle.disconnected or cycle.transport.is_closing()):
            raise
        cycle.disconnected = True
        log.debug("the client was gone before its answer was sent: %s", error)


async def _until_close(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Run the app for a client of HTTP/1.0: its answer ends with the connection."""

    async def unframed(message: Any) -> None:
        if message["type"] == "http.response.start":
            cycle.chunked_encoding = False
        else:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, unframed)


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """Return the user at the other end of a Unix socket; None for other sockets, and where the
    system does not say."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid


def _is_reset(descriptor: int) -> bool:
    """Whether the other end of the socket is gone, rather than only done with sending."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
