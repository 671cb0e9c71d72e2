"""The engine in its own process, driven from asyncio. If it crashes, pending requests fail and a
new process is started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import zmq
from attrs import define, field

from inferno.core.types import EngineOutput, EngineStats, FinishReason, Request
from inferno.errors import EngineDeadError, InfernoError
from inferno.plan import Plan, plan_to_json
from inferno.process import protocol

log = logging.getLogger("inferno.process")

_GIVE_UP_AFTER = 3
"""Failed starts in a row after which the engine stays down."""


@define(eq=False)
class TokenStream:
    """One request's tokens. `take` returns all that arrived since the last call, so that a slow
    reader costs only the memory of its tokens; iterating waits and takes until a token finishes the
    request. Both raise EngineDeadError. May be abandoned after `abort`."""

    request_id: str
    news: asyncio.Event = field(factory=asyncio.Event)
    """Set while there is something to take, an error included. Several streams may share one."""
    _tokens: list[EngineOutput] = field(factory=list, init=False)
    _error: InfernoError | None = field(default=None, init=False)
    _done: bool = field(default=False, init=False)

    def feed(self, token: EngineOutput) -> None:
        self._tokens.append(token)
        self._done = token.finish is not None
        self.news.set()

    def fail(self, error: InfernoError) -> None:
        self._error = error
        self.news.set()

    def take(self) -> list[EngineOutput]:
        """Return the tokens since the last call. An error is raised only after the last of them was
        taken."""
        tokens, self._tokens = self._tokens, []
        if self._error is not None:
            if not tokens:
                raise self._error
            self.news.set()  # for the call that raises it
        return tokens

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineOutput]:
        while not (tokens := self.take()):
            if self._done:
                raise StopAsyncIteration
            await self.news.wait()
            self.news.clear()
        return tokens


@define(eq=False)
class _Link:
    """This end of the socket to an engine process.

    libzmq's descriptor is edge-triggered: any operation on the socket may consume the notification
    of a message, so every use ends with a check for messages.
    """

    socket: zmq.Socket[bytes]
    take: Callable[[bytes, bytes], None]

    @classmethod
    def bind(
        cls,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        take: Callable[[bytes, bytes], None],
    ) -> _Link:
        socket = context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        link = cls(socket, take)
        asyncio.get_running_loop().add_reader(socket.fileno(), link.look)
        return link

    def send(self, kind: bytes, body: bytes) -> None:
        # Without a peer, its process has ended, and `EngineClient._keep` will report that.
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([kind, body], zmq.NOBLOCK)
        asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        while not self.socket.closed:
            try:
                kind, body = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.take(kind, body)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.socket.fileno())
        self.socket.close()


class EngineClient:
    """Starts the engine process, sends it requests and distributes its tokens. Starts another when
    it dies."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        """Once the engine is ready, the plan that it runs, with what it measured."""
        self.stats = EngineStats()
        self.alive = False
        self._streams: dict[str, TokenStream] = {}
        self._aborting: Counter[str] = Counter()
        """Ids whose tokens belong to an aborted request until the engine confirms the abort: the id
        may already be in use again."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._process: asyncio.subprocess.Process | None = None
        self._link: _Link | None = None
        self._ready: asyncio.Future[None] | None = None
        self._last_words: InfernoError | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._failure: InfernoError | None = None

    @property
    def pid(self) -> int | None:
        """The engine process's id, or None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises the error with which it failed."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop the process. Pending requests fail with EngineDeadError."""
        self._closing = True
        self.alive = False
        if self._link is not None and not self._link.socket.closed:
            self._link.send(protocol.STOP, b"")
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._keeper is not None:
            await self._keeper
        self._fail_all(EngineDeadError("the engine was closed", "Start another."))
        self._context.destroy(linger=0)

    def submit(self, request: Request, news: asyncio.Event | None = None) -> TokenStream:
        """Send a request to the engine. `news` is the stream's event, if several share one."""
        if not self.alive or self._link is None:
            raise self._failure or EngineDeadError(
                "the engine process is being restarted", "Try again in a moment."
            )
        stream = TokenStream(request.id, news or asyncio.Event())
        self._streams[request.id] = stream
        self._link.send(protocol.ADD, protocol.encode(request))
        return stream

    def abort(self, request_id: str) -> None:
        """Drop a request: its stream ends. An unknown or finished one is ignored."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return
        if self.alive and self._link is not None:
            self._link.send(protocol.ABORT, protocol.encode(request_id))
            self._aborting[request_id] += 1
        stream.feed(EngineOutput(request_id, None, FinishReason.ABORT))

    # --- the process ------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        folder = tempfile.mkdtemp(prefix="inferno-")
        endpoint, plan = f"ipc://{Path(folder) / 'engine'}", Path(folder) / "plan.json"
        self._last_words, self._ready = None, asyncio.get_running_loop().create_future()
        self._link = link = _Link.bind(self._context, endpoint, self._take)
        self._process = None
        try:
            plan.write_text(
                plan_to_json(self.plan), encoding="utf-8"
            )  # a file, because this process may be too busy to send it
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "inferno.process.worker",
                endpoint,
                str(os.getpid()),
                str(plan),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_fileno() else None,
            )
            ended = asyncio.ensure_future(process.wait())
            either: set[asyncio.Future[Any]] = {self._ready, ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            link.look()
            if not self._ready.done() or self._last_words is not None:
                await process.wait()
                link.look()  # its last words
                raise self._last_words or EngineDeadError(
                    f"the engine process {_ending(process)} while starting", "Its log is above."
                )
        except BaseException:
            link.close()
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            raise
        finally:
            shutil.rmtree(
                folder, ignore_errors=True
            )  # the worker has read the plan, and both ends have the socket open
        self.alive, self._failure = True, None

    async def _keep(self) -> None:
        """Wait for the process to end; then fail pending requests and start another."""
        while True:
            assert self._process is not None and self._link is not None, "_spawn sets both"
            await self._process.wait()
            self._link.look()
            self.alive = False
            self._link.close()
            if self._closing:
                return
            cause = (
                self._last_words.cause
                if self._last_words
                else f"the engine process {_ending(self._process)}"
            )
            log.error("%s; starting another", cause)
            if self._last_words and self._last_words.detail:
                log.error("%s", self._last_words.detail)
            self._fail_all(
                EngineDeadError(cause, "It is being restarted: send the request again in a moment.")
            )
            if not await self._respawn():
                return

    async def _respawn(self) -> bool:
        for attempt in range(_GIVE_UP_AFTER):
            if self._closing:
                return False
            try:
                start = time.perf_counter()
                await self._spawn()
                log.warning(
                    "engine process %s is ready after %.1f s", self.pid, time.perf_counter() - start
                )
                return True
            except InfernoError as error:
                log.error("the engine did not start: %s", error)
                self._failure = EngineDeadError(
                    f"the engine does not start: {error.cause}", error.remedy
                )
                await asyncio.sleep(2**attempt)
        log.critical("the engine failed to start %d times in a row; giving up", _GIVE_UP_AFTER)
        return False

    def _take(self, kind: bytes, body: bytes) -> None:
        """Handle one message of the process."""
        if kind == protocol.TOKENS:
            for token in protocol.decode_tokens(body):
                self._hand_out(token)
        elif kind == protocol.STATS:
            self.stats = protocol.decode_stats(body)
        elif kind == protocol.READY and self._ready is not None and not self._ready.done():
            self.plan = protocol.decode_plan(body)
            self._ready.set_result(None)
        elif kind == protocol.FAILED:
            failure: protocol.Failure = protocol.decode_failure(body)
            self._last_words = failure.error()

    def _hand_out(self, token: EngineOutput) -> None:
        if token.request_id in self._aborting:
            if token.finish is FinishReason.ABORT:
                self._aborting -= Counter([token.request_id])
            return
        stream = self._streams.get(token.request_id)
        if stream is None:
            return
        if token.finish is not None:
            del self._streams[token.request_id]
        stream.feed(token)

    def _fail_all(self, error: EngineDeadError) -> None:
        streams, self._streams = self._streams, {}
        self._aborting.clear()
        for stream in streams.values():
            stream.fail(error)


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _ending(process: asyncio.subprocess.Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
