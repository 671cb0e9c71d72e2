"""Reads several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Merge(Generic[T]):
    """Yields the items of several streams as they arrive. A stream is asked for its next item only
    when its last one is taken, so items accumulate in the streams. Leaving the context closes them.
    """

    def __init__(self, streams: Sequence[AsyncGenerator[T, None]]) -> None:
        self._streams = streams
        self._only = streams[0] if len(streams) == 1 else None
        """The only stream, if there is one: it needs no task per item."""
        self._pending: dict[asyncio.Future[T], int] = {}
        """The next item of each stream that has not ended, and the stream's index."""
        self._ready: list[asyncio.Future[T]] = []

    async def __aenter__(self) -> Self:
        if self._only is None:
            for i in range(len(self._streams)):
                self._ask(i)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    async def next(self) -> tuple[int, T] | None:
        """Return (stream index, item), or None when all have ended. Raises what a stream raises."""
        if self._only is not None:
            try:
                return 0, await anext(self._only)
            except StopAsyncIteration:
                return None
        while self._pending:
            if not self._ready:
                done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
                self._ready = sorted(done, key=self._pending.__getitem__, reverse=True)
            task = self._ready.pop()
            i = self._pending.pop(task)
            try:
                item = task.result()
            except StopAsyncIteration:
                continue
            self._ask(i)
            return i, item
        return None

    def _ask(self, i: int) -> None:
        self._pending[asyncio.ensure_future(anext(self._streams[i]))] = i
