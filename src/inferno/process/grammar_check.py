"""Checks grammars before their requests are admitted, in a process of its own:
`python -m inferno.process.grammar_check PLAN SECONDS`.

A hostile grammar may take minutes or gigabytes to compile, in native code that cannot be
interrupted. A process can: it has limits of processor time and memory for each grammar, and ends
where one exceeds them. One that gets no processor is ended too, and says nothing of the grammar.
It starts with the first grammar, or before.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import resource
import signal
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from attrs import evolve, frozen

from inferno.contracts import GrammarSpec
from inferno.errors import CheckerBusyError, EngineDeadError, GrammarError, InfernoError
from inferno.plan import Plan, plan_from_json, plan_to_json
from inferno.process.environment import environment

SECONDS = 2.0
"""Processor time for one grammar. Most take milliseconds."""
PATIENCE = 5
"""How many times as long a check may wait for its turn, and then for its answer."""
_START_SECONDS = 60.0
MEMORY = 4 * 2**30
"""Bytes that the process may allocate."""
_REMEMBERED = 1024
"""Verdicts that are kept: clients send the same schema again and again."""


@frozen
class Verdict:
    """Whether a grammar compiles, and if not, why."""

    cause: str = ""
    remedy: str = ""
    path: str = ""

    def raise_error(self) -> None:
        """Raise GrammarError unless it compiles."""
        if self.cause:
            raise GrammarError(self.cause, self.remedy, path=self.path)


_encode = msgspec.msgpack.Encoder().encode
_decode_spec = msgspec.msgpack.Decoder(GrammarSpec).decode
_decode_verdict = msgspec.msgpack.Decoder(Verdict).decode


class GrammarChecker:
    """Checks grammars for a plan, one at a time."""

    def __init__(self, plan: Plan, *, seconds: float = SECONDS) -> None:
        self._plan, self._seconds = plan, seconds
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self.checks, self.seconds, self.kills = 0, 0.0, 0
        """Grammars that the process was asked about, the time of that, and how many ended it."""

    async def check(self, spec: GrammarSpec) -> None:
        """Raise GrammarError if the grammar does not compile, takes too much to compile, or
        gives up within its first tokens, and CheckerBusyError if that cannot be told now."""
        body = _encode(evolve(spec, param=""))
        key = hashlib.sha256(body).digest()
        if key not in self._known:
            began = time.monotonic()
            try:
                async with self._turn():
                    if key not in self._known:
                        self._known[key] = await self._ask(body)
            finally:
                self.checks += 1
                self.seconds += time.monotonic() - began
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known[key].raise_error()

    async def start(self) -> None:
        """Start the process before the first grammar, which then need not wait for it. If that
        fails, the first grammar tries again, and tells why."""
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
        try:
            await asyncio.wait_for(self._lock.acquire(), PATIENCE * self._seconds)
        except TimeoutError as error:
            raise CheckerBusyError("too many grammars are being checked") from error
        try:
            yield
        finally:
            self._lock.release()

    async def _ask(self, body: bytes) -> Verdict:
        """Return the process's verdict. Raises GrammarError if the grammar ends the process, which
        is not remembered. What ended one process for no known reason is asked of another."""
        for again in (True, False):
            process = await self._started()
            try:
                return _decode_verdict(await self._answer(process, body))
            except TimeoutError as error:
                raise CheckerBusyError("the process that checks grammars gets no time") from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                code = await self._exit_code(process)
                if code == -signal.SIGPROF:
                    cause = f"the grammar takes more than {self._seconds:g} s to compile"
                    raise GrammarError(cause, "Simplify it.") from error
                if not again or code != -signal.SIGKILL:
                    cause = "the grammar takes too much memory to compile"
                    raise GrammarError(cause, "Simplify it.") from error
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
                *(sys.executable, "-m", "inferno.process.grammar_check", str(plan)),
                str(self._seconds),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment(None if self._plan.sandbox is None else folder),
            )
            try:
                await asyncio.wait_for(_exchange(process, b""), _START_SECONDS)
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
                await self.close()
                raise EngineDeadError(
                    "the process that checks grammars did not start",
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


def main() -> None:
    """Answer each grammar with a verdict, until the pipe is closed. The first answer says that the
    process is ready."""
    from inferno.process.confined import confine

    plan = plan_from_json(Path(sys.argv[1]).read_bytes())
    confine(plan)  # before anything of the model is read, and before numpy has threads
    from inferno.constraints import Grammars
    from inferno.plan import reopen

    # Both may go to the whole process group (Ctrl-C, a service manager), while the client drains:
    # the end of the pipe ends the process.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    with reopen(plan) as opened:
        grammars = Grammars.of(opened)
        grammars.prepare()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    _write(answers, Verdict())
    while head := sys.stdin.buffer.read(4):
        spec = _decode_spec(sys.stdin.buffer.read(int.from_bytes(head, "big")))
        # At its end SIGPROF ends the process, whatever native code is doing.
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[2]))
        try:
            grammars.check(spec)
            verdict = Verdict()
        except GrammarError as error:
            verdict = Verdict(error.cause, error.remedy, error.path)
        except InfernoError as error:
            verdict = Verdict(error.cause, error.remedy)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, verdict)


def _write(stream: BinaryIO, verdict: Verdict) -> None:
    body = _encode(verdict)
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


if __name__ == "__main__":
    main()
