"""The engine in its own process, driven from asyncio. A crash there is an error for who waits, and a new process."""

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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from attrs import define, field

from inferno.engine import protocol
from inferno.errors import EngineDeadError, InfernoError
from inferno.plan import Plan, plan_to_json
from inferno.types import EngineStats, FinishReason, Request, Token

log = logging.getLogger("inferno.engine")

_GIVE_UP_AFTER = 3
"""Starts that fail in a row before the engine stays down."""


@define(eq=False)
class TokenStream:
    """One request's tokens. Iterating gives whatever piled up since the last look, so that a slow reader costs its tokens
    and nothing more. Ends after a token that finishes; raises EngineDeadError. May be abandoned after `abort`."""

    request_id: str
    _tokens: list[Token] = field(factory=list, init=False)
    _event: asyncio.Event = field(factory=asyncio.Event, init=False)
    _error: InfernoError | None = field(default=None, init=False)
    _done: bool = field(default=False, init=False)

    def feed(self, token: Token) -> None:
        self._tokens.append(token)
        self._done = token.finish is not None
        self._event.set()

    def fail(self, error: InfernoError) -> None:
        self._error = error
        self._event.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._done = True
        self._event.set()

    def __aiter__(self) -> AsyncIterator[list[Token]]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[list[Token]]:
        while True:
            await self._event.wait()
            self._event.clear()
            tokens, self._tokens = self._tokens, []
            if tokens:
                yield tokens
            if self._done and not self._tokens:
                return
            if self._error is not None:
                raise self._error


class EngineClient:
    """Starts the engine process, sends it requests, hands out its tokens; starts another when it dies."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stats = EngineStats()
        self.alive = False
        self._streams: dict[str, TokenStream] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._context = zmq.asyncio.Context()
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._failure: InfernoError | None = None

    @property
    def pid(self) -> int | None:
        """The engine process's id, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises the error it failed with."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop the process; whoever still waits gets EngineDeadError."""
        self._closing = True
        self.alive = False
        if self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                await self._socket.send_multipart([protocol.STOP, b""], flags=zmq.NOBLOCK)
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._keeper is not None:
            await self._keeper
        self._fail_all(EngineDeadError("the engine was closed", "Open another."))
        self._context.destroy(linger=0)

    def submit(self, request: Request) -> TokenStream:
        if not self.alive or self._socket is None:
            raise self._failure or EngineDeadError("the engine process is being restarted", "Try again in a moment.")
        stream = TokenStream(request.id)
        self._streams[request.id] = stream
        self._post(protocol.ADD, protocol.encode(request))
        return stream

    def abort(self, request_id: str) -> None:
        """Forget a request: its stream ends. One that is unknown or finished is no error."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return
        if self.alive:
            self._post(protocol.ABORT, protocol.encode(request_id))
        stream.feed(Token(request_id, -1, FinishReason.ABORT))

    # --- the process ----------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        folder = tempfile.mkdtemp(prefix="inferno-")
        socket = self._context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        endpoint = f"ipc://{Path(folder) / 'engine'}"
        socket.bind(endpoint)
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "inferno.engine.worker", endpoint, str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr.fileno() if _has_fileno() else None,
            )  # fmt: skip
            await socket.send_multipart([protocol.PLAN, plan_to_json(self.plan).encode()])
            await self._ready(socket, process)
        except BaseException:
            socket.close()
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # both ends hold the socket open by now
        self._socket, self.alive, self._failure = socket, True, None

    async def _ready(self, socket: zmq.asyncio.Socket, process: asyncio.subprocess.Process) -> None:
        """Until it says ready. Raises what it failed with, or how it ended."""
        message = asyncio.ensure_future(socket.recv_multipart())
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait({message, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not message.done():  # its last words may still be in the socket
            await asyncio.wait({message}, timeout=0.5)
        ended.cancel()
        if not message.done():
            message.cancel()
            raise EngineDeadError(f"the engine process {_ending(process)} while starting", "Its log is above.")
        kind, body = message.result()
        if kind == protocol.FAILED:
            await process.wait()
            failure: protocol.Failure = protocol.decode_failure(body)
            raise failure.error()
        assert kind == protocol.READY, "the worker's first word is ready or failed"

    async def _keep(self) -> None:
        """Receive until the process ends; then tell who waits and start another."""
        while True:
            last_words = await self._receive()
            self.alive = False
            if self._closing:
                return
            assert self._process is not None and self._socket is not None, "_spawn sets both"
            self._socket.close()
            cause = last_words.cause if last_words else f"the engine process {_ending(self._process)}"
            log.error("%s; starting another", cause)
            if last_words and last_words.detail:
                log.error("%s", last_words.detail)
            self._fail_all(EngineDeadError(cause, "It is being restarted: send the request again in a moment."))
            if not await self._respawn():
                return

    async def _respawn(self) -> bool:
        for attempt in range(_GIVE_UP_AFTER):
            if self._closing:
                return False
            try:
                start = time.perf_counter()
                await self._spawn()
                log.warning("engine process %s is ready after %.1f s", self.pid, time.perf_counter() - start)
                return True
            except InfernoError as error:
                log.error("the engine did not start: %s", error)
                self._failure = EngineDeadError(f"the engine does not start: {error.cause}", error.remedy)
                await asyncio.sleep(2**attempt)
        log.critical("the engine failed to start %d times in a row; giving up", _GIVE_UP_AFTER)
        return False

    async def _receive(self) -> InfernoError | None:
        """Hand out tokens until the process ends. Returns the error it named, if it could."""
        assert self._process is not None and self._socket is not None, "_spawn sets both"
        ended: asyncio.Future[Any] = asyncio.ensure_future(self._process.wait())
        message: asyncio.Future[Any] | None = None
        failure: InfernoError | None = None
        while True:
            message = message or asyncio.ensure_future(self._socket.recv_multipart())
            if not message.done():
                await asyncio.wait({message, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                # The process is gone; what it sent before may still arrive.
                await asyncio.wait({message}, timeout=0.05)
                if not message.done():
                    message.cancel()
                    return failure
            kind, body = message.result()
            message = None
            if kind == protocol.TOKENS:
                for token in protocol.decode_tokens(body):
                    self._hand_out(token)
            elif kind == protocol.STATS:
                self.stats = protocol.decode_stats(body)
            elif kind == protocol.FAILED:
                failure = protocol.decode_failure(body).error()

    def _hand_out(self, token: Token) -> None:
        stream = self._streams.get(token.request_id)
        if stream is None:  # aborted meanwhile
            return
        if token.finish is not None:
            del self._streams[token.request_id]
        stream.feed(token)

    def _fail_all(self, error: EngineDeadError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _post(self, kind: bytes, body: bytes) -> None:
        assert self._socket is not None, "callers check `alive`"
        # Without a high-water mark a send never waits: asking for a coroutine would only reorder messages.
        zmq.Socket.send_multipart(zmq.Socket.shadow(self._socket.underlying), [kind, body], zmq.NOBLOCK)


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
