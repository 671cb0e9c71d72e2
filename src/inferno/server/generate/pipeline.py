"""Responds to a prepared request: whole, or as a stream of frames. Either stops when the client
disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send

from inferno.server.access.limiter import Limiter
from inferno.server.generate.generation import Generation, Prepared
from inferno.server.generate.shape import Shape
from inferno.server.http.errors import CLIENT_LEFT
from inferno.server.observe.watch import Memory

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM
    from inferno.server.observe.metrics import ModelMetrics

PING_SECONDS = 10.0
"""Silence before a keep-alive comment, which stops proxies from closing the connection during a
long prefill."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Pipeline:
    """What all generations of one model share. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(
        self,
        llm: AsyncLLM,
        limiter: Limiter,
        metrics: ModelMetrics,
        ping_seconds: float = PING_SECONDS,
        request_timeout: float | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.llm, self.limiter, self.metrics = llm, limiter, metrics
        self.ping_seconds, self.request_timeout = ping_seconds, request_timeout
        self.memory = memory or Memory()
        """What is remembered of its requests."""

    async def respond(
        self, prepared: Prepared, shape: Shape[Any], receive: Receive
    ) -> Response[Any]:
        """Generate, and answer in that shape: as a stream if the client asks for one, else whole.
        Raises errors that become a status code."""
        generation = Generation(self.llm, self.limiter, self.metrics, prepared)
        generation.open(self.request_timeout)
        ending = contextlib.ExitStack()
        ending.callback(generation.close)
        if generation.record is not None:  # even if the response is never begun
            generation.record.at_end.append(ending.close)
        await generation.check()
        self.memory.watch(generation, self.llm)
        shape.open(generation)
        ending.callback(shape.close)
        if prepared.stream:
            return Stream(
                _frames(generation, shape),
                media_type=shape.media_type,
                ping=shape.ping,
                abort=generation.abort,
                close=ending.close,
                ping_seconds=self.ping_seconds,
            )
        try:
            async with on_disconnect(receive, generation.abort):
                async for deltas in generation.deltas():
                    for delta in deltas:
                        shape.choices[delta.index].take(delta)
            if not all(choice.finish for choice in shape.choices):  # its client is gone
                return Response(b"", status_code=CLIENT_LEFT, media_type="application/json")
            await shape.completed()
            return Response(shape.whole(), media_type="application/json")
        finally:
            ending.close()


async def _frames(generation: Generation, shape: Shape[Any]) -> AsyncGenerator[bytes, None]:
    choices = shape.choices
    try:
        for frame in shape.begin():
            yield frame
        async with contextlib.aclosing(generation.deltas()) as deltas:
            async for some in deltas:
                for delta in some:
                    choice = choices[delta.index]
                    choice.take(delta)
                    for frame in shape.update(choice):
                        yield frame
        if all(choice.finish for choice in choices):
            await shape.completed()
            for frame in shape.end():
                yield frame
    except Exception as error:
        yield shape.error(error)


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


class Stream(Response[Any]):
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
        media_type: str = "text/event-stream",
        ping: bytes = b": ping\n\n",
    ) -> None:
        """`ping` is sent after `ping_seconds` of silence, if not empty."""
        super().__init__(b"", media_type=media_type, headers=_HEADERS)
        self._make = partial(_ASGIStream, frames, abort, close, ping_seconds, media_type, ping)

    def to_asgi_response(
        self, *args: Any, headers: dict[str, str] | None = None, **kwargs: Any
    ) -> ASGIResponse:
        return self._make({**(headers or {}), **self.headers})


class _ASGIStream(ASGIResponse):
    _should_set_content_length = False

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        abort: Callable[[], object],
        close: Callable[[], object],
        ping_seconds: float,
        media_type: str,
        ping: bytes,
        headers: dict[str, str],
    ) -> None:
        super().__init__(media_type=media_type, headers=headers, status_code=200)
        self._ping = ping
        self._frames, self._abort, self._close = frames, abort, close
        self._ping_seconds = ping_seconds

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
                # A client that is still receiving needs no ping.
                if silent < self._ping_seconds or sending:
                    await asyncio.sleep(max(self._ping_seconds - silent, self._ping_seconds / 10))
                    continue
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})
                await asyncio.sleep(self._ping_seconds)

        pinger = asyncio.create_task(ping()) if self._ping else None
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
            if pinger is not None:
                pinger.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
