"""Starts the engine process, watches it, and starts another when it ends or hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from inferno.errors import EngineDeadError, InfernoError
from inferno.plan import Plan, plan_to_json
from inferno.process import protocol
from inferno.process.connection import Connection
from inferno.process.heartbeat import BEAT_SECONDS, ENGINE_TIMEOUT, Watchdog

log = logging.getLogger("inferno.process")

_GIVE_UP_AFTER = 3
"""Failed starts in a row after which the engine stays down."""


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
    ) -> None:
        self.running = False
        """Whether the process takes requests."""
        self.restarts = 0
        """How many processes ended or hung."""
        self.plan, self._on_message, self._on_end = plan, on_message, on_end
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._process: asyncio.subprocess.Process | None = None
        self._connection: Connection | None = None
        self._watchdog: Watchdog | None = None
        self._timeout, self._beat = timeout, beat
        self._ready: asyncio.Future[None] | None = None
        self._last_words: InfernoError | None = None
        """The error that the process sent before it ended."""
        self._watcher: asyncio.Task[None] | None = None
        self._closing = False
        self._failure: EngineDeadError | None = None
        """Why the last start failed."""

    @property
    def alive(self) -> bool:
        """Whether the process takes requests and gives signs of life."""
        return self.running and self._watchdog is not None and self._watchdog.responsive

    @property
    def pid(self) -> int | None:
        """The engine process's id, or None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises the error with which it failed."""
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop the process, and kill it if it has not ended after 5 s."""
        self._closing = True
        self.running = False
        if self._connection is not None and not self._connection.closed:
            self._connection.send(protocol.STOP, b"")
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._watcher is not None:
            await self._watcher
        self._on_end(EngineDeadError("the engine was closed", "Start another."))
        self._context.destroy(linger=0)

    def send(self, kind: bytes, body: bytes) -> None:
        """Send a message to the process. Raises EngineDeadError while there is none."""
        if not self.running or self._connection is None:
            raise self._failure or EngineDeadError(
                "the engine process is being restarted", "Try again in a moment."
            )
        self._connection.send(kind, body)

    async def _spawn(self) -> None:
        folder = tempfile.mkdtemp(prefix="inferno-")
        endpoint, plan = f"ipc://{Path(folder) / 'engine'}", Path(folder) / "plan.json"
        self._last_words, self._ready = None, asyncio.get_running_loop().create_future()
        self._connection = connection = Connection.bind(self._context, endpoint, self._take)
        self._process = None
        self._watchdog = watchdog = Watchdog(timeout=self._timeout, beat=self._beat)
        try:
            # A file, because this process may be too busy to send it.
            plan.write_text(plan_to_json(self.plan), encoding="utf-8")
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "inferno.process.worker",
                endpoint,
                str(os.getpid()),
                str(plan),
                str(watchdog.pipe_of_process),
                str(self._beat),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_fileno() else None,
                pass_fds=(watchdog.pipe_of_process,),
            )
            if self._closing:  # `close` found no process to stop
                raise EngineDeadError("the engine was closed", "Start another.")
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
        except BaseException:
            connection.close()
            watchdog.close()
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            raise
        finally:
            # The worker has read the plan, and both ends have the socket open.
            shutil.rmtree(folder, ignore_errors=True)
            watchdog.started()
        self.running, self._failure = True, None

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
            words, ending = self._last_words, watchdog.verdict or _ending(process)
            cause = words.cause if words else f"the engine process {ending}"
            log.error("%s: %s; starting another", self.plan.model_id, cause)
            if words and words.detail:
                log.error("%s", words.detail)
            self._on_end(
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
                    "%s: engine process %s is ready after %.1f s",
                    self.plan.model_id,
                    self.pid,
                    time.perf_counter() - start,
                )
                return True
            except InfernoError as error:
                if not self._closing:
                    log.error("%s: the engine did not start: %s", self.plan.model_id, error)
                    self._failure = EngineDeadError(
                        f"the engine does not start: {error.cause}", error.remedy
                    )
                    await asyncio.sleep(2**attempt)
        log.critical(
            "%s: the engine failed to start %d times in a row; giving up",
            self.plan.model_id,
            _GIVE_UP_AFTER,
        )
        return False

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == protocol.READY and self._ready is not None and not self._ready.done():
            self.plan = protocol.decode_plan(body)
            self._ready.set_result(None)
        elif kind == protocol.FAILED:
            failure: protocol.Failure = protocol.decode_failure(body)
            self._last_words = failure.error()
        elif kind == protocol.LOG:
            line: protocol.LogLine = protocol.decode_log(body)
            logger = logging.getLogger(line.logger)
            logger.log(line.level, "%s: %s", self.plan.model_id, line.message)
        else:
            self._on_message(kind, body)


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
