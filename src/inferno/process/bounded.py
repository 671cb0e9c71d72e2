"""A process for what a request may make take minutes or gigabytes, in native code that cannot be
interrupted. A process can: it has limits of processor time and memory for each message, and ends
where one exceeds them. One that gets no processor is ended too, and says nothing of the message.
It starts with the first message, or before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, ClassVar, NoReturn

from inferno.errors import CheckerBusyError, EngineDeadError, InfernoError
from inferno.host import starved
from inferno.plan import Plan, plan_to_json
from inferno.process.environment import environment

PATIENCE = 5
"""How many times as long a message may wait for its turn, and then for its answer."""
_START_SECONDS = 60.0


class BoundedProcess:
    """`python -m MODULE PLAN SECONDS`, which answers one message after the other. Subclasses say
    what it does."""

    module: ClassVar[str]
    does: ClassVar[str]
    """As in "the process that checks grammars"."""
    noun: ClassVar[str]
    """What a message has, in the plural."""
    variables: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Of its environment, besides this process's."""
    busy: ClassVar[type[CheckerBusyError]] = CheckerBusyError
    """What is raised while a message can have no answer."""

    def __init__(self, plan: Plan, *, seconds: float) -> None:
        self._plan, self._seconds = plan, seconds
        self._arguments: tuple[str, ...] = ()
        """What the process is given besides."""
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self.checks, self.seconds, self.kills = 0, 0.0, 0
        """Messages that the process was sent, the time of that, and how many ended it."""

    def exceeded(self, limit: str, cause: BaseException) -> NoReturn:
        """Raise the error of a message that exceeded a limit: `time` or `memory`."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the process before the first message, which then need not wait for it. If that
        fails, the first message tries again, and tells why."""
        with contextlib.suppress(InfernoError):
            async with self._lock:
                await self._started()

    async def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the process's turn, and count it."""
        began = time.monotonic()
        try:
            try:
                await asyncio.wait_for(self._lock.acquire(), PATIENCE * self._seconds)
            except TimeoutError as error:
                raise self.busy(f"too many {self.noun} are being checked") from error
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self.checks += 1
            self.seconds += time.monotonic() - began

    async def _ask(self, body: bytes) -> bytes:
        """Return the process's answer. Raises what `exceeded` does if the message ends the process.
        What ended one process for no known reason is asked of another."""
        for again in (True, False):
            process = await self._started()
            try:
                return await self._answer(process, body)
            except TimeoutError as error:
                raise self.busy(f"the process that {self.does} gets no time") from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                code = await self._exit_code(process)
                if code == -signal.SIGPROF:
                    self.exceeded("time", error)
                if not again or code != -signal.SIGKILL:
                    self.exceeded("memory", error)
        raise AssertionError("the second attempt returns or raises")

    async def _answer(self, process: asyncio.subprocess.Process, body: bytes) -> bytes:
        try:
            return await asyncio.wait_for(_exchange(process, body), PATIENCE * self._seconds)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.kills += 1
            raise
        except BaseException:  # cancelled, too: its answer would be taken for the next one's
            self.kills += 1
            await self.close()
            raise

    async def _exit_code(self, process: asyncio.subprocess.Process) -> int:
        """Return how a process that closed its pipe ended. It is not killed at once: `kill` reaps a
        process that has just ended, and asyncio would never learn its exit code."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), PATIENCE * self._seconds)
        await self.close()
        return -signal.SIGKILL

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        with tempfile.TemporaryDirectory(prefix="inferno-") as folder:
            plan = Path(folder) / "plan.json"
            plan.write_text(plan_to_json(self._plan), encoding="utf-8")
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self.module, str(plan)),
                *(str(self._seconds), *self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={
                    **environment(None if self._plan.sandbox is None else folder),
                    **self.variables,
                },
            )
            try:
                await asyncio.wait_for(_exchange(process, b""), _START_SECONDS)
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
                await self.close()
                raise EngineDeadError(
                    f"the process that {self.does} did not start",
                    "See the server's log for the reason, and try again.",
                ) from error
            except BaseException:
                await self.close()
                raise
        return process


async def _exchange(process: asyncio.subprocess.Process, body: bytes) -> bytes:
    """Send a message, unless it is empty, and return the answer."""
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    if body:
        process.stdin.write(len(body).to_bytes(4, "big") + body)
    size = int.from_bytes(await process.stdout.readexactly(4), "big")
    return await process.stdout.readexactly(size)


def begin() -> None:
    """To be called in the process, before it loads anything: what is printed goes to the log, and
    signals to the whole process group (Ctrl-C, a service manager) do not end it while the client
    drains: the end of the pipe does."""
    sys.stdout, sys.excepthook = sys.stderr, _tell
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write the error that ends the process: a limit of the system needs no traceback."""
    if (limit := starved(error)) is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(limit.cause, limit.remedy, sep="\n", file=sys.stderr)


def serve(
    answer: Callable[[bytes], bytes],
    ready: bytes,
    seconds: float,
    memory: int,
    seconds_per_byte: float = 0.0,
) -> None:
    """Answer each message, until the pipe is closed. The first answer says that the process is
    ready. A message may take so many seconds, and more for each byte; the process may allocate so
    many bytes of `memory`. To be called in the process, once it has loaded what it needs."""
    assert sys.__stdout__ is not None, "it is a pipe"
    answers: Any = sys.__stdout__.buffer
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    _write(answers, ready)
    while head := sys.stdin.buffer.read(4):
        body = sys.stdin.buffer.read(int.from_bytes(head, "big"))
        # At its end SIGPROF ends the process, whatever native code is doing.
        signal.setitimer(signal.ITIMER_PROF, seconds + seconds_per_byte * len(body))
        answered = answer(body)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, answered)


def _write(stream: BinaryIO, body: bytes) -> None:
    try:
        stream.write(len(body).to_bytes(4, "big") + body)
        stream.flush()
    except BrokenPipeError:  # the caller has ended; Python would flush again at exit
        os._exit(0)
