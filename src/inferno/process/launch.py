"""Launches engine processes. One can be launched before anything else: torch is imported there
while the model is opened here. Until then this module imports next to nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

from inferno.host import usable_cores
from inferno.process.environment import environment
from inferno.process.heartbeat import BEAT_SECONDS

if TYPE_CHECKING:
    from concurrent.futures import Future
    from tempfile import TemporaryDirectory

    from inferno.plan import Plan

PLAN, ENDPOINT = "plan.json", "engine"
"""The files in the folder that an engine process is given."""
_COMMAND = (sys.executable, "-m", "inferno.process")


class EngineProcess:
    """A child process that imports torch, and waits for its plan (`begin`). It ends when this
    process does."""

    plan: Plan | None = None
    """The plan that it runs."""

    def __init__(self, beat: float = BEAT_SECONDS, *, confined: bool = False) -> None:
        """Launch the process. It gives a sign of life every `beat` seconds. One that is to be
        `confined` imports nothing before its plan says how."""
        self.beat = beat
        self._scratch = _scratch() if confined else None
        self.beats, end = os.pipe()
        """The pipe from which its signs of life are read; the reader closes it."""
        self._folder: TemporaryDirectory[str] | None = None
        try:
            self._child = subprocess.Popen(
                [*_COMMAND, str(os.getpid()), str(end), str(beat), *_given(self.scratch)],
                stdin=subprocess.PIPE,
                stdout=_stderr(),
                pass_fds=(end,),
                env=environment(self.scratch),
            )
        except BaseException:
            os.close(self.beats)
            raise
        finally:
            os.close(end)
        self._code: Future[int] | None = None

    @property
    def scratch(self) -> str | None:
        """The folder of its temporary files, if it is confined."""
        return None if self._scratch is None else self._scratch.name

    @property
    def endpoint(self) -> str:
        """The socket to which it connects once it has its plan, and which may be opened later."""
        assert self._folder is not None, "`begin` makes it"
        return f"ipc://{self._folder.name}/{ENDPOINT}"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """As `subprocess.Popen` has it, or None while the process runs."""
        return self._child.returncode

    def begin(self, plan: Plan) -> None:
        """Make it run a plan. Does nothing if the process has ended."""
        from tempfile import TemporaryDirectory

        from inferno.plan import plan_to_json

        self.plan, self._folder = plan, TemporaryDirectory(prefix="inferno-")
        # A file, because a pipe takes no plan at once.
        with open(os.path.join(self._folder.name, PLAN), "w", encoding="utf-8") as file:
            file.write(plan_to_json(plan))
        with contextlib.suppress(BrokenPipeError):
            self._input.write(os.fsencode(self._folder.name) + b"\n")
            self._input.flush()

    def remove_files(self) -> None:
        """Remove the plan and the endpoint: they are not needed once the engine is ready."""
        if self._folder is not None:
            self._folder.cleanup()

    def discard(self) -> None:
        """Kill it, before anything reads its signs of life."""
        self.kill()
        os.close(self.beats)
        self.remove_files()

    def kill(self) -> None:
        self._child.kill()

    async def wait(self) -> int:
        """Wait until it has ended. Returns its code."""
        import asyncio
        from concurrent.futures import Future

        if self._code is None:
            code = Future[int]()
            code.set_running_or_notify_cancel()  # no waiter cancels it for the others
            thread = threading.Thread(target=self._await_end, args=(code,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no thread
                while self._child.poll() is None:
                    await asyncio.sleep(0.1)
                self._await_end(code)
            self._code = code
        return await asyncio.wrap_future(self._code)

    @property
    def _input(self) -> IO[bytes]:
        assert self._child.stdin is not None, "it is a pipe"
        return self._child.stdin

    def _await_end(self, code: Future[int]) -> None:
        result = self._child.wait()
        if self._scratch is not None:
            self._scratch.cleanup()
        with contextlib.suppress(OSError):  # what was not written
            self._input.close()
        code.set_result(result)


def launch_early() -> EngineProcess | None:
    """Launch a process for the next engine. Call it before anything else: then torch's import takes
    another core while the model is opened. Returns None where that is no gain: on one core, or if
    this process has imported torch already."""
    if "torch" in sys.modules or usable_cores() < 2:
        return None
    return EngineProcess()


def launch(plan: Plan, beat: float, early: EngineProcess | None = None) -> EngineProcess:
    """Return a process that runs the plan: `early`, or a new one if that is None, runs another
    plan, gives its signs of life at other times, or can no longer be confined. Then `early` is
    ended."""
    process, confined = early, plan.sandbox is not None
    if process is not None and not (
        process.beat == beat
        and process.plan in (None, plan)
        and (process.scratch is not None) == confined
    ):
        process.discard()
        process = None
    if process is None:
        process = EngineProcess(beat, confined=confined)
    try:
        if process.plan is None:
            process.begin(plan)
    except BaseException:
        process.discard()
        raise
    return process


def _scratch() -> TemporaryDirectory[str]:
    from tempfile import TemporaryDirectory

    return TemporaryDirectory(prefix="inferno-", ignore_cleanup_errors=True)


def _given(scratch: str | None) -> list[str]:
    return [] if scratch is None else [scratch]


def _stderr() -> int | None:
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None
