"""Responses that are generated in the background: their clients do not wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from inferno.errors import QueueFullError
from inferno.server.observe.record import Record, current, in_record

log = logging.getLogger("inferno.server")

MAX_BACKGROUND = 256
"""Responses in the background at once."""
_CLOSE_SECONDS = 1.0


class Background:
    """Work that outlives its HTTP requests. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(self, ended: Callable[[Record], object], limit: int = MAX_BACKGROUND) -> None:
        """`ended` is called with the record of each work, as with those of requests."""
        self._ended, self._limit = ended, limit
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, work: Callable[[], Awaitable[object]], begun: asyncio.Event) -> None:
        """Start work that continues when its request has ended, with the request's key and id, and
        return once it sets `begun`. Raises what it raises before, and QueueFullError."""
        if len(self._tasks) >= self._limit:
            raise QueueFullError(
                f"{self._limit} responses are being generated in the background",
                "Wait for one of them, or cancel it.",
            )
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        waiting = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            waiting.cancel()
        if not begun.is_set():
            task.result()  # raises what the work has raised

    async def close(self) -> None:
        """Wait for the work that is left, and end it after a while. A server that drains has ended
        its generations before."""
        if tasks := list(self._tasks):
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Callable[[], Awaitable[object]]) -> None:
        async with in_record(current(), self._ended):
            await work()
