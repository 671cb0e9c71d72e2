"""Starts the engine process, watches it, and starts another when it ends or hangs."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import zmq

from inferno.errors import EngineDeadError, EngineKilledError, InfernoError
from inferno.plan import Plan
from inferno.process import protocol
from inferno.process.connection import Connection
from inferno.process.heartbeat import BEAT_SECONDS
from inferno.process.launch import EngineProcess, launch
from inferno.process.watchdog import ENGINE_TIMEOUT, Watchdog

log = logging.getLogger("inferno.process")

LONGEST_PAUSE = 60.0
"""Seconds between two starts that failed, at most: 1, then twice as long each time. What was in
their way (memory, files, a disk that is full) may be gone at any time, so they go on."""


class Supervisor:
    """Keeps one engine process running for a plan.

    `on_message(kind, body)` is called for each message of a running engine; `on_end(error)` when
    the process has ended, with the error for the requests that it had. A process that gives no sign
    of life for `timeout` seconds is killed, and never if that is 0.
    """

    def __init__(
        self,
        plan: Plan,
        on_message: Callable[[bytes, bytes], None],
        on_end: Callable[[EngineDeadError], None],
        *,
        timeout: float = ENGINE_TIMEOUT,
        beat: float = BEAT_SECONDS,
        early: EngineProcess | None = None,
        on_lost: Callable[[], object] = lambda: None,
        name: str = "",
    ) -> None:
        """`early` is a process for the first start. `on_lost` is called when the process has not
        answered for so long that its requests are to be given up. `name` is what the log calls it,
        if not as its model."""
        self.running = False
        """Whether the process takes requests."""
        self.restarts = 0
        """How many processes ended or hung."""
        self.killed = False
        """Whether the last one, or one of its ranks, was ended from outside, and not by what it
        computed."""
        self.name = name or plan.model_id
        self.plan, self._on_message, self._on_end = plan, on_message, on_end
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._process: EngineProcess | None = None
        self._early = early
        self._connection: Connection | None = None
        self._watchdog: Watchdog | None = None
        self._timeout, self._beat, self._on_lost = timeout, beat, on_lost
        self.failed_starts = 0
        """How many starts have failed one after another."""
        self._spawning = asyncio.Lock()
        self._ready: asyncio.Future[None] | None = None
        self._last_words: InfernoError | None = None
        """The error that the process sent before it ended."""
        self._watcher: asyncio.Task[None] | None = None
        self._closing = False
        self._failure: EngineDeadError | None = None
        """Why the last start failed."""
        self._awaited: asyncio.Future[None] | None = None
        """Ends with the next start, if somebody waits for it (`revive`)."""
        self._hurry = asyncio.Event()
        """Ends the pause between two starts."""

    @property
    def alive(self) -> bool:
        """Whether the process takes requests and gives signs of life."""
        return self.running and self._watchdog is not None and self._watchdog.responsive

    @property
    def stalled(self) -> bool:
        """Whether the process runs a step that takes far longer than it should."""
        return self.running and self._watchdog is not None and self._watchdog.stalled

    @property
    def quiet(self) -> tuple[float, float]:
        """Seconds since the process's last sign of life, and since its loop came round."""
        watchdog = self._watchdog if self.running else None
        return (0.0, 0.0) if watchdog is None else (watchdog.silence, watchdog.busy_for)

    @property
    def pid(self) -> int | None:
        """The engine process's id, or None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def scratch(self) -> str | None:
        """The folder of the process's temporary files, if it is confined."""
        return self._process.scratch if self._process is not None else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises the error with which it failed."""
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch())

    async def close(self, *, patient: bool = False) -> None:
        """Stop the process. Kill it if it has not ended after 5 s, or 30 s where blocks may be left
        to write, or is just being started. If `patient`, wait until it has written its packed
        weights."""
        self._closing = True
        self._hurry.set()
        if self._early is not None:  # it was never started
            self._early.discard()
            self._early = None
        was_running, self.running = self.running, False
        if was_running and self._connection is not None and not self._connection.closed:
            self._connection.send(protocol.STOP, protocol.PATIENTLY if patient else b"")
        if self._process is not None:
            try:
                store = self.plan.store
                most = 5 if store is None or store.folder is None else 30
                seconds = (None if patient else most) if was_running else 0
                await asyncio.wait_for(self._process.wait(), seconds)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._watcher is not None:
            await self._watcher
        self._on_end(EngineDeadError("the engine was closed", "Start another."))
        async with self._spawning:  # a start that failed has closed its socket
            self._context.destroy(linger=0)

    async def revive(self) -> None:
        """Start the process now if it ended, or has stalled, and wait until it runs. Raises the
        error with which that start fails."""
        if self._closing or self._watcher is None:
            raise self._absence()
        if self.running and not self.stalled:
            return
        if self._awaited is None:
            self._awaited = asyncio.get_running_loop().create_future()
        if self.stalled and self._process is not None:
            self._process.kill()
        self._hurry.set()
        await asyncio.shield(self._awaited)

    def send(self, kind: bytes, body: bytes) -> None:
        """Send a message to the process. Raises EngineDeadError while there is none."""
        if not self.running or self._connection is None:
            raise self._absence()
        self._connection.send(kind, body)

    def _absence(self) -> EngineDeadError:
        """Return the error that says why there is no process."""
        if self._closing:
            return EngineDeadError("the engine was closed", "Start another.")
        if self._watcher is None:
            return EngineDeadError(
                "the engine was not started", "Await start() first, or use `async with`."
            )
        return self._failure or EngineDeadError(
            "the engine process is being restarted", "Try again in a moment."
        )

    async def _spawn(self) -> None:
        self.killed, self._last_words = False, None
        self._ready = asyncio.get_running_loop().create_future()
        async with self._spawning, AsyncExitStack() as undo:
            process = await self._run_plan(undo)
            undo.pop_all()
            process.remove_files()
        self.running, self._failure, self.failed_starts = True, None, 0

    async def _run_plan(self, undo: AsyncExitStack) -> EngineProcess:
        """Start a process, wait until it is ready, and return it. `undo` gets what ends it."""
        early, self._early = self._early, None
        self._process = process = launch(self.plan, self._beat, early)
        undo.callback(process.remove_files)
        undo.push_async_callback(process.wait)
        undo.callback(process.kill)
        self._watchdog = Watchdog(process.beats, timeout=self._timeout, beat=self._beat)
        self._watchdog.on_lost, self._watchdog.ask = self._on_lost, self._ask
        undo.callback(self._watchdog.close)
        self._connection = connection = Connection.bind(self._context, process.endpoint, self._take)
        undo.callback(connection.close)
        assert self._ready is not None, "_spawn sets it"
        ended = asyncio.ensure_future(process.wait())
        either: set[asyncio.Future[Any]] = {self._ready, ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        connection.receive()
        if not self._ready.done() or self._last_words is not None:
            await process.wait()
            connection.receive()  # its last words
            raise self._last_words or EngineDeadError(
                f"the engine process {_ending(process)} while starting", "Its log is above."
            )
        return process

    async def _watch(self) -> None:
        """Wait for the process to end; then report that and start another."""
        while True:
            process, connection, watchdog = self._process, self._connection, self._watchdog
            assert process and connection and watchdog, "_spawn sets them"
            watching = asyncio.create_task(watchdog.watch(process.pid, process.kill))
            await process.wait()
            watching.cancel()
            connection.receive()
            self.running = False
            connection.close()
            watchdog.close()
            if self._closing:
                return
            self.restarts += 1
            by_signal = process.returncode == -signal.SIGKILL
            self.killed |= by_signal and not (self._last_words or watchdog.verdict)
            words, ending = self._last_words, watchdog.verdict or _ending(process)
            cause = words.cause if words else f"the engine process {ending}"
            log.error("%s: %s; starting another", self.name, cause)
            if words and (words.remedy or words.detail):
                log.error("%s", words.remedy or words.detail)  # a remedy says more than a traceback
            self._on_end(_restarting(cause))
            if not await self._respawn():
                return

    async def _respawn(self) -> bool:
        """Start another process, and go on until one runs. Returns False if it is to be closed."""
        attempt = 0
        while not self._closing:
            self._hurry.clear()
            try:
                start = time.perf_counter()
                await self._spawn()
            except (InfernoError, OSError) as error:  # OSError: no room for its files, no process
                if not self._tries_again(error):
                    break
                pause = min(2.0**attempt, LONGEST_PAUSE)
                attempt = min(attempt + 1, 10)
                log.error("%s: the next start is in %g s", self.name, pause)
                self._tell(self._failure)
                await self._pause(pause)
            else:
                seconds = time.perf_counter() - start
                log.warning(
                    "%s: engine process %s is ready after %.1f s", self.name, self.pid, seconds
                )
                self._tell(None)
                return True
        self._tell(self._absence())
        return False

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or until somebody is in a hurry."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)

    def _tell(self, error: EngineDeadError | None) -> None:
        """Tell those who wait for the start how it ended."""
        waiting, self._awaited = self._awaited, None
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    def _tries_again(self, error: InfernoError | OSError) -> bool:
        """Note that the engine did not start. Returns whether to start another."""
        if self._closing:
            return False
        self.failed_starts += 1
        log.error("%s: the engine did not start: %s", self.name, error)
        cause = error.cause if isinstance(error, InfernoError) else str(error)
        remedy = error.remedy if isinstance(error, InfernoError) else "See the server's log."
        self._failure = EngineDeadError(f"the engine does not start: {cause}", remedy)
        return True

    def _ask(self) -> None:
        if self.running and self._connection is not None:
            self._connection.send(protocol.ASK, b"")

    def _take(self, kind: bytes, body: bytes) -> None:
        if self._watchdog is not None:
            self._watchdog.heard()
        if kind == protocol.READY and self._ready is not None and not self._ready.done():
            self.plan = protocol.decode_plan(body) if body else self.plan
            self._ready.set_result(None)
        elif kind == protocol.FAILED:
            failure: protocol.Failure = protocol.decode_failure(body)
            self._last_words = failure.error()
            self.killed = isinstance(self._last_words, EngineKilledError)
            if self.running:  # it computes nothing more, and its end takes a moment
                self.running = False
                self._on_end(_restarting(self._last_words.cause))
        elif kind == protocol.LOG:
            line: protocol.LogLine = protocol.decode_log(body)
            logger = logging.getLogger(line.logger)
            logger.log(line.level, "%s: %s", self.name, line.message)
        else:
            self._on_message(kind, body)


def _restarting(cause: str) -> EngineDeadError:
    return EngineDeadError(cause, "It is being restarted: send the request again in a moment.")


def _ending(process: EngineProcess) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
