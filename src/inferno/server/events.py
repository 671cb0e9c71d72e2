"""SSE responses that stop when the client disconnects and send keep-alive comments during long
waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send

PING_SECONDS = 10.0
"""Silence before a keep-alive comment, which stops proxies from closing the connection during a
long prefill."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def on_disconnect(receive: Receive, call: Callable[[], object]) -> AsyncIterator[None]:
    """Call `call` if the client disconnects while the block runs."""

    async def watch() -> None:
        await wait_for_disconnect(receive)
        call()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


class Events(Response[Any]):
    """A streaming response of encoded frames.

    `abort` is called when the client disconnects and must end `frames` normally: cancelling the
    task would take effect only when it sleeps, and with tokens always ready it never does.
    `close` is always called once.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        abort: Callable[[], object],
        close: Callable[[], object],
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        super().__init__(b"", media_type="text/event-stream", headers=_HEADERS)
        self._make = partial(_ASGIEvents, frames, abort, close, ping_seconds)

    def to_asgi_response(
        self, *args: Any, headers: dict[str, str] | None = None, **kwargs: Any
    ) -> ASGIResponse:
        return self._make({**(headers or {}), **self.headers})


class _ASGIEvents(ASGIResponse):
    _should_set_content_length = False

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        abort: Callable[[], object],
        close: Callable[[], object],
        ping_seconds: float,
        headers: dict[str, str],
    ) -> None:
        super().__init__(media_type="text/event-stream", headers=headers, status_code=200)
        self._frames, self._abort, self._close, self._ping_seconds = (
            frames,
            abort,
            close,
            ping_seconds,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

    async def send_body(self, send: Send, receive: Receive) -> None:
        last, sending = time.monotonic(), False

        async def ping() -> None:
            while True:
                silent = time.monotonic() - last
                if (
                    silent < self._ping_seconds or sending
                ):  # a client that is still receiving needs no ping
                    await asyncio.sleep(max(self._ping_seconds - silent, self._ping_seconds / 10))
                    continue
                await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
                await asyncio.sleep(self._ping_seconds)

        pinger = asyncio.create_task(ping())
        try:
            async with (
                on_disconnect(receive, self._abort),
                contextlib.aclosing(self._frames) as frames,
            ):
                async for frame in frames:
                    sending = True
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
                    last, sending = time.monotonic(), False
        finally:
            pinger.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
