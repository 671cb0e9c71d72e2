"""`EngineClient` for callers without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen

from inferno.errors import RequestError
from inferno.plan import Plan
from inferno.process.client import TokenStream
from inferno.process.engines.opening import client_for
from inferno.process.launch import EngineProcess
from inferno.process.protocol import Control
from inferno.request.requests import EngineOutput, Request
from inferno.request.sessions import SessionView

_Result = TypeVar("_Result")


@frozen
class _Sessions:
    """The sessions of an engine, asked for as `inferno.stores.NoSessions` is."""

    client: BlockingClient

    def views(self, owner: str, name: str | None = None, limit: int = 1) -> list[SessionView]:
        return self.client.ask_sessions(owner, name, limit=limit)

    def end(self, owner: str, name: str) -> list[SessionView]:
        return self.client.ask_sessions(owner, name, ends=True)


class BlockingClient:
    """The engine in a separate process, called as `inferno.core.engine.Engine` is. Its event loop
    runs in a thread."""

    def __init__(self, plan: Plan, early: EngineProcess | None = None) -> None:
        """Start the engine process, without waiting for it (`wait_until_ready`). `early` is one
        that was launched before (`launch_early`)."""
        self._client = client_for(plan, early=early)
        self._news = asyncio.Event()
        self._streams: dict[str, TokenStream] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="inferno engine client", daemon=True
        )
        self._thread.start()
        self._starting = asyncio.run_coroutine_threadsafe(self._client.start(), self._loop)
        self._call(asyncio.sleep(0))  # the process has its plan

    def wait_until_ready(self) -> Plan:
        """Return the plan that runs. Raises the error with which the engine failed to start."""
        self._starting.result()
        return self._client.plan

    @property
    def busy(self) -> bool:
        """Whether requests are pending."""
        return bool(self._streams)

    def submit(self, request: Request) -> None:
        """Send a request. Raises EngineDeadError, and GrammarError if its grammar does not
        compile."""
        self._call(self._submit(request))

    def step(self) -> list[EngineOutput]:
        """Wait for tokens of any request. Raises EngineDeadError."""
        return self._call(self._take())

    def abort(self, request_id: str) -> None:
        """Drop a request. An unknown or finished one is ignored."""
        self._streams.pop(request_id, None)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._client.abort, request_id)

    @property
    def sessions(self) -> _Sessions:
        """What is kept of sessions."""
        return _Sessions(self)

    @property
    def unfinished(self) -> list[str]:
        """The ids of pending requests."""
        return list(self._streams)

    @property
    def asleep(self) -> bool:
        return self._client.asleep

    @property
    def weight_version(self) -> str:
        return self._client.weight_version

    def sleep(self, level: int) -> None:
        """Give memory back, like `Engine.sleep`."""
        self._call(self._client.control(Control(action="sleep", level=level, mode="keep")))

    def wake_up(self, *, cache: bool) -> None:
        """Have the memory again, like `Engine.wake_up`."""
        self._call(self._client.control(Control(action="wake_up", cache=cache)))

    def update_weights(
        self, path: Path, version: str | None = None, *, temporary: bool = False
    ) -> str:
        """Replace weights, like `Engine.update_weights`."""
        file = str(path.absolute())
        update = Control(
            action="update_weights", mode="keep", path=file, temporary=temporary, version=version
        )
        self._call(self._client.control(update))
        return self._client.weight_version

    def close(self) -> None:
        """Stop the engine process, once it has written packed weights for the next start."""
        if self._loop.is_closed():
            return
        try:
            self._starting.cancel()
            self._call(self._client.close(patient=True))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def ask_sessions(
        self, owner: str, name: str | None, *, limit: int = 1, ends: bool = False
    ) -> list[SessionView]:
        """Return what is kept of sessions, like `EngineClient.sessions`."""
        return self._call(self._client.sessions(owner, name, limit=limit, ends=ends))

    async def _submit(self, request: Request) -> None:
        if (spec := request.params.structured_outputs) is not None:
            await self._client.check(spec)
        self._streams[request.id] = self._client.submit(request, self._news)

    async def _take(self) -> list[EngineOutput]:
        await self._news.wait()
        self._news.clear()
        taken: list[EngineOutput] = []
        for request_id, stream in list(self._streams.items()):
            tokens = stream.take()
            if tokens and tokens[-1].finish is not None:
                self._streams.pop(request_id, None)
            taken += tokens
        return taken

    def _call(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop.is_closed():
            call.close()
            raise RequestError("the engine is closed", "Load another one.")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C: the call must not take tokens that nobody receives
            future.cancel()
            raise
