"""Rank 0's side: the other ranks' processes, what they are sent, and how they end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq

from inferno.contracts import RankPlace, RankProcess, RankStart
from inferno.errors import EngineDeadError
from inferno.plan import Plan, plan_to_json
from inferno.process.protocol import Failure
from inferno.process.ranks import messages
from inferno.process.ranks.exchange import Build, Gloo

PLAN, WORDS = "plan.json", "words"
"""Files in the ranks' folder: their plan, and the socket on which rank 0 hears from them. That of a
follower is called by its number."""
STOPPED_SECONDS = 5.0
"""A rank that a signal has stopped for so long is ended."""
_PATIENCE = 0.5
"""Seconds to wait for the last words of a rank, once its end is felt."""
_RESTARTED = "It is restarted with the engine; in a program, load the model again."

log = logging.getLogger("inferno.process")

Start = Callable[[RankStart], RankProcess]
"""`contracts.Executor.start`"""


class Group:
    """The ranks of one engine. Only one thread calls it."""

    def __init__(self, plan: Plan, start: Start, build: Build = Gloo) -> None:
        """Start the others. They load their parts meanwhile, until `meet`. `build` builds this
        rank's communicator."""
        assert plan.ranks is not None, "a plan with ranks"
        self.ranks = plan.ranks.count
        self._files = TemporaryDirectory(prefix="inferno_ranks_")
        folder = Path(self._files.name)
        (folder / PLAN).write_text(plan_to_json(plan), encoding="utf-8")
        self.communicator = build(RankPlace(rank=0, ranks=self.ranks, folder=str(folder)))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._words = self._context.socket(zmq.PULL)
        self._words.bind(f"ipc://{folder / WORDS}")
        self._sockets = [self._socket(folder / str(rank)) for rank in range(1, self.ranks)]
        self._processes: dict[int, RankProcess] = {}
        self._endings: dict[int, str] = {}
        """How ranks ended, if they have."""
        self._said: dict[int, messages.Words] = {}
        self._over: EngineDeadError | None = None
        """Why nothing can be computed any more."""
        self._closed = threading.Event()
        for rank in range(1, self.ranks):
            command = (sys.executable, "-m", "inferno.process.ranks")
            what = RankStart(
                rank=rank,
                ranks=self.ranks,
                folder=str(folder),
                command=(*command, str(folder), str(rank), str(os.getpid())),
            )
            name = f"inferno rank {rank}"
            attend = partial(self._attend, what, start)
            threading.Thread(target=attend, name=name, daemon=True).start()

    def _socket(self, path: Path) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{path}")
        return socket

    def _attend(self, what: RankStart, start: Start) -> None:
        """Start a rank and wait for its end: the system may end a process with the thread that
        started it."""
        try:
            process = self._processes[what.rank] = start(what)
        except OSError as error:
            self._endings[what.rank] = f"could not be started: {error}"
            return
        if self._closed.is_set():
            process.kill()
        threading.Thread(target=self._watch, args=(what.rank, process), daemon=True).start()
        self._endings[what.rank] = process.wait()
        self.communicator.close()  # this rank may be waiting for that one

    def _watch(self, rank: int, process: RankProcess) -> None:
        """End a rank that is stopped: the others would wait for it."""
        since: float | None = None
        while not self._closed.wait(0.5) and rank not in self._endings:
            if not process.is_stopped():
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > STOPPED_SECONDS:
                process.kill()

    def meet(self) -> None:
        """Wait until all ranks have loaded their parts, and connect them. Raises what a rank failed
        with, or EngineDeadError if it ended."""
        loaded = set[int]()
        while len(loaded) < self.ranks - 1:
            self._listen(0.05)
            loaded = {rank for rank, words in self._said.items() if words.failure is None}
            self.check()
        self.communicator.connect()

    def check(self) -> None:
        """Raise the error that ended the group, or what ended one of its ranks; then all end."""
        if self._over is None and not self._endings and not self._failures():
            return
        raise self.end(None)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message to all followers."""
        for socket in self._sockets:
            socket.send_multipart([kind, body])

    def end(self, error: BaseException | None) -> BaseException:
        """End all ranks after an error in a step: they would wait for this one in another layer.
        Returns the error to raise: what a rank has said, if that is the reason, else this one."""
        if self._over is not None:
            return self._over
        until = time.monotonic() + _PATIENCE
        while error is None or not isinstance(error, KeyboardInterrupt):
            self._listen(0.02)
            if self._failures() or time.monotonic() > until:
                break
            if self._endings and not self._words.poll(50):
                break
        told = self._reason()
        self._over = told or EngineDeadError(
            "a step was interrupted, and with it the ranks that computed it", _RESTARTED
        )
        self._stop()
        return told or error or self._over

    def _reason(self) -> EngineDeadError | None:
        """Return why ranks have ended by themselves, if any has."""
        for rank, failure in self._failures().items():
            if not failure.remedy:  # a bug: what can be done about it begins with this
                log.error("rank %d: %s", rank, failure.detail)
            remedy = failure.remedy or _RESTARTED
            error = EngineDeadError(f"rank {rank}: {failure.cause}", remedy)
            return error.with_detail(failure.detail)
        for rank, ending in self._endings.items():
            return EngineDeadError(f"rank {rank} of {self.ranks} {ending}", _RESTARTED)
        return None

    def _failures(self) -> dict[int, Failure]:
        return {rank: words.failure for rank, words in self._said.items() if words.failure}

    def _listen(self, seconds: float) -> None:
        """Take what ranks have said, and wait a moment for the first word."""
        wait = int(seconds * 1000)
        while self._words.poll(wait):
            words: messages.Words = messages.decode_words(self._words.recv())
            self._said[words.rank] = words
            wait = 0

    def close(self) -> None:
        """End the ranks in peace."""
        if self._over is None:
            self._over = EngineDeadError("the engine was closed", "Load another one.")
            self.send(messages.END)
            until = time.monotonic() + 5
            while len(self._endings) < self.ranks - 1 and time.monotonic() < until:
                time.sleep(0.01)
            self._stop()

    def _stop(self) -> None:
        self._closed.set()
        self.communicator.close()
        for process in [*self._processes.values()]:
            process.kill()
        for socket in (*self._sockets, self._words):
            socket.close(0)
        self._context.destroy(linger=0)
        self._files.cleanup()
