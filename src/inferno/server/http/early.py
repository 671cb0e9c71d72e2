"""Begins a stream before its handler does, while the handler waits for a model to be loaded: a
proxy or the client would close a connection that is silent for minutes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send

from inferno.server.observe.record import record_of

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Early:
    """The sending side of one response. Once pings have begun it, the handler's own start is left
    out, and an error becomes the stream's only event: the status is already sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_begun = False
        self._failed: bytes | None = None
        """The body of an error so far."""

    async def ping(self) -> None:
        """Send a comment, which clients ignore."""
        if not self._is_begun:
            self._is_begun = True
            start: HTTPResponseStartEvent = {
                "type": "http.response.start",
                "status": 200,
                "headers": list(_HEADERS),
            }
            await self._send(start)
        await self._send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})

    async def send(self, message: Message) -> None:
        """Send a message of the handler's response."""
        if self._is_begun and message["type"] == "http.response.start":
            self._failed = b"" if message["status"] >= 400 else None
            return
        if self._failed is not None and message["type"] == "http.response.body":
            self._failed += message["body"]
            if message["more_body"]:
                return
            frame, self._failed = b"data: " + self._failed + b"\n\n", None
            message = {"type": "http.response.body", "body": frame, "more_body": False}
        await self._send(message)

    @contextlib.asynccontextmanager
    async def pinging(self, seconds: float) -> AsyncIterator[None]:
        """Send a comment at regular intervals while the block runs."""
        ended = asyncio.Event()

        async def work() -> None:
            while True:
                try:
                    await asyncio.wait_for(ended.wait(), seconds)
                    return
                except TimeoutError:
                    await self.ping()

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            ended.set()  # not cancelled: a message may be on its way
            await asyncio.gather(task, return_exceptions=True)


class EarlyStreams:
    """ASGI app that lets the handlers of `app` begin streams early, by `record.pinging`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        if record is None:
            await self._app(scope, receive, send)
            return
        early = Early(send)
        record.pinging = early.pinging
        await self._app(scope, receive, early.send)
