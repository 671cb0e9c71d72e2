"""Rank 0's side: the other ranks' processes, what they are sent, and how they end."""

from __future__ import annotations

import logging
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory

from inferno.contracts import MachineStart, RankProcess, RankStart
from inferno.errors import EngineDeadError, EngineKilledError
from inferno.plan import AdapterPlaces, Plan, plan_to_json
from inferno.process.protocol import Failure
from inferno.process.ranks import messages
from inferno.process.ranks.arriving import STEPS
from inferno.process.ranks.exchange import Build, Gloo, place_of
from inferno.process.ranks.machines import Machines
from inferno.process.ranks.meeting import Meeting
from inferno.process.ranks.passing import meeting_by
from inferno.process.ranks.wire import Wire, listener

PLAN = "plan.json"
"""The file in the ranks' folder with their plan."""
STOPPED_SECONDS = 5.0
"""A rank that a signal has stopped for so long is ended."""
STOPPED = "had been stopped by a signal, and"
KILLED = "SIGKILL"
"""The signal that ends a rank whatever it computes (`contracts.RankProcess.wait`)."""
_PATIENCE, _PATIENCE_FOR_AN_EXIT = 0.5, 10.0
"""Seconds to wait for the last words of a rank, once its end is felt; and of one that ended with an
error of its own, which says why, over a network perhaps later than its machine tells the end."""
_RESTARTED = "A server that was ready starts its engine anew; in a program, load the model again."

log = logging.getLogger("inferno.process")

Start = Callable[[RankStart], RankProcess]
"""`contracts.Executor.start`"""
Launch = Callable[[MachineStart], Sequence[RankProcess]]
"""`contracts.Executor.machines`"""


class Group:
    """The ranks of one engine. Only one thread calls it."""

    def __init__(
        self,
        plan: Plan,
        start: Start,
        build: Build = Gloo,
        machines: Machines | None = None,
        launch: Launch | None = None,
    ) -> None:
        """Start the others. They load their parts meanwhile, until `meet`. `build` builds this
        rank's communicator. Ranks that `start` does not start join over `machines`, which the group
        closes, and whose processes `launch` starts, if anything does."""
        assert plan.ranks is not None, "a plan with ranks"
        self.ranks, self.stages = plan.ranks.count, plan.ranks.stages
        self._files = TemporaryDirectory(prefix="inferno_ranks_")
        folder = Path(self._files.name)
        (folder / PLAN).write_text(plan_to_json(plan), encoding="utf-8")
        self._meeting = Meeting(self._announce, self._await_word)
        self._early: list[tuple[Wire, bytes]] | None = []
        """What ranks are found by that were ready before others had come."""
        self._machines = machines
        if machines is not None:
            build = meeting_by(build, machines.host, self._meeting)
            machines.folder = str(folder) if machines.use.nodes == 1 else ""
        self.communicator = build(place_of(plan, 0, str(folder)))
        self._listener = listener(folder / STEPS, self.ranks)
        self._wires: list[Wire] = []
        self._far = set[Wire]()
        """Those of ranks that joined from other machines."""
        self.seeing = dict[int, Wire]()
        """Of these, by rank, those that compute images, and do not have the files of pixels."""
        self._heard = selectors.DefaultSelector()
        """The listener, and the wires that are open."""
        self._heard.register(self._listener, selectors.EVENT_READ)
        self._processes: dict[int, RankProcess] = {}
        self._endings: dict[int, str] = {}
        """How ranks ended, if they have."""
        self._stopped = set[int]()
        self._said: dict[int, messages.Words] = {}
        self._told: list[messages.Fetched | messages.Asked] = []
        self._changed: dict[int, messages.Words] = {}
        """How each rank fared with the latest change."""
        self._others = list[RankProcess]()
        """The other machines' processes, as far as they were started here."""
        self._launched = ""
        """How one of these ended before its time, or why it could not be started."""
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
            elsewhere = rank >= plan.ranks.started
            by = machines.start if machines is not None and elsewhere else start
            attend = partial(self._attend, what, by)
            threading.Thread(target=attend, name=name, daemon=True).start()
        if machines is not None:
            machines.open()
            given = plan, machines, launch
            threading.Thread(target=self._launch, args=given, daemon=True).start()

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
        ending = process.wait()
        self._endings[what.rank] = f"{STOPPED} {ending}" if what.rank in self._stopped else ending
        if self._over is None:  # else others have not yet read that the group ends in peace
            self._let_go()

    def _let_go(self) -> None:
        """Let this rank go on if it waits for one that has ended."""
        self.communicator.close()
        for wire in [*self._wires]:
            wire.hang_up()

    def _launch(self, plan: Plan, machines: Machines, launch: Launch | None) -> None:
        """Start the other machines' processes, and wait for their ends."""
        try:
            started = launch(machines.start_of(plan)) if launch is not None else ()
        except OSError as error:
            self._launched = f"other machines could not be started: {error}"
            return
        self._others += started
        if self._closed.is_set():
            for process in started:
                process.kill()
        for process in started:
            threading.Thread(target=self._await_machine, args=(process,), daemon=True).start()

    def _await_machine(self, process: RankProcess) -> None:
        ending = process.wait()
        if not self._closed.is_set():
            self._launched = f"another machine's process {ending}"
            self._let_go()

    def _watch(self, rank: int, process: RankProcess) -> None:
        """End a rank that is stopped: the others would wait for it."""
        since: float | None = None
        while not self._closed.wait(0.5) and rank not in self._endings:
            if not process.is_stopped():
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > STOPPED_SECONDS:
                self._stopped.add(rank)
                process.kill()

    def meet(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until all ranks have loaded their parts, and connect them. Raises what a rank failed
        with, or EngineDeadError if it ended, or if the engine is no longer `wanted`."""
        loaded, told = set[int](), 0
        while len(loaded) < self.ranks - 1:
            self._listen(0.05)
            loaded = {rank for rank, words in self._said.items() if words.failure is None}
            self.check()
            if not wanted():
                raise EngineDeadError("whoever wanted this engine has ended", "Start it anew.")
            if self._machines is not None and (left := self._machines.awaited) != told:
                told = left
                if left:
                    log.info("waiting for %d to join: %s", left, self._machines.command)
        self.communicator.connect()

    @property
    def places(self) -> list[AdapterPlaces]:
        """Where the ranks that were met have room for adapters, if there are pipeline stages."""
        return [words.places for words in self._said.values() if words.places is not None]

    def check(self) -> None:
        """Raise the error that ended the group, or what ended one of its ranks; then all end."""
        if self._over is None and not (self._endings or self._launched or self._failures()):
            return
        raise self.end(None)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message to all followers."""
        for wire in self._wires:
            wire.send(kind, body)

    def send_to_seeing(self, kind: bytes, body: bytes) -> None:
        """Send a message to those of other machines that compute images."""
        for wire in self.seeing.values():
            wire.send(kind, body)

    @property
    def is_over(self) -> bool:
        """Whether nothing can be computed any more."""
        return self._over is not None

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when a rank has said something, or has ended."""
        return self._heard.fileno()

    def take_told(self) -> list[messages.Fetched | messages.Asked]:
        """Return what ranks have said of their stores since. Raises what has ended one of them."""
        if self._over is None:  # else it hears nothing any more
            self._listen(0.0)
        self.check()
        told, self._told = self._told, []
        return told

    def begin_change(self, change: messages.Change) -> None:
        """Have all followers change something."""
        self.check()
        self._changed.clear()
        self.send(messages.CHANGE, messages.encode(change))

    def end_change(self) -> None:
        """Wait until all have. Raises the error of one that has refused, which changed nothing."""
        while len(self._changed) < self.ranks - 1:
            self._await_word()
        for rank, words in sorted(self._changed.items()):
            if words.failure is not None:
                error = words.failure.error()
                error.cause = f"rank {rank}: {error.cause}"
                raise error

    @contextmanager
    def changing(self, change: messages.Change) -> Iterator[None]:
        """Context in which rank 0 changes what all followers change meanwhile. An error of any ends
        the group."""
        with self.together():
            self.begin_change(change)
            yield
            self.end_change()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context in which an error ends the group: others are in what this rank has left."""
        self.check()
        try:
            yield
        except BaseException as error:
            raise self.end(error) from error

    def _announce(self, kind: bytes, body: bytes) -> None:
        """Send the other ranks what they find each other by, once all have come."""
        early, self._early = self._early or [], None
        with suppress(EOFError):  # `check` says why
            self.send(kind, body)
        for wire, told in early:
            self._pass_on(wire, told)

    def _pass_on(self, wire: Wire, body: bytes) -> None:
        """Send the others what one rank is found by."""
        if self._early is not None:
            self._early.append((wire, body))
            return
        with suppress(EOFError):
            for other in self._wires:
                if other is not wire:
                    other.send(messages.MEET, body)

    def _await_word(self) -> None:
        self._listen(0.05)
        self.check()

    def end(self, error: BaseException | None) -> BaseException:
        """End all ranks after an error in a step: they would wait for this one in another layer.
        Returns the error to raise: what a rank has said, if that is the reason, else this one."""
        if self._over is not None:
            return self._over
        felt = time.monotonic()
        while error is None or not isinstance(error, KeyboardInterrupt):
            news = self._listen(0.05)
            heard_all = self._machines is None and self._endings and not news
            exited = any(
                " code " in ending and messages.PEACE not in ending
                for ending in [*self._endings.values()]
            )
            until = felt + (_PATIENCE_FOR_AN_EXIT if exited else _PATIENCE)
            if self._failures() or time.monotonic() > until or heard_all:
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
            killed = KILLED in ending
            kind = EngineKilledError if killed else EngineDeadError
            return kind(f"rank {rank} of {self.ranks} {ending}", _RESTARTED)
        return EngineDeadError(self._launched, _RESTARTED) if self._launched else None

    def _failures(self) -> dict[int, Failure]:
        return {rank: words.failure for rank, words in self._said.items() if words.failure}

    def _listen(self, seconds: float) -> bool:
        """Take what ranks have said, and wait a moment for the first word. Returns whether any has
        said something, or has connected."""
        news = self._machines is not None and self._arrive(self._machines)
        while ready := self._heard.select(seconds):
            seconds = 0.0
            for wire in [key.fileobj for key, _ in ready]:
                news |= self._hear(wire) if isinstance(wire, Wire) else self._accept()
        return news

    def _accept(self) -> bool:
        self._add(Wire(self._listener.accept()[0]))
        return True

    def _add(self, wire: Wire) -> None:
        self._wires.append(wire)
        self._heard.register(wire, selectors.EVENT_READ)

    def _arrive(self, machines: Machines) -> bool:
        """Take the connections of other machines' ranks, and what came with their greetings.
        Returns whether there are any."""
        news = False
        with suppress(Empty):
            while True:
                wire = machines.arrived.get_nowait()
                self._add(wire)
                self._far.add(wire)
                news = True
                self._hear(wire)
        return news

    def _hear(self, wire: Wire) -> bool:
        """Take what a rank has said. Returns whether it has said something."""
        news = False
        try:
            while (message := wire.receive(0.0)) is not None:
                news = True
                if message[0] == messages.MEET:
                    self._meeting.take(message[1])
                    self._pass_on(wire, message[1])
                    continue
                if message[0] in messages.OF_STORES:
                    self._told.append(messages.decode_told(*message))
                    continue
                words: messages.Words = messages.decode_words(message[1])
                told = self._changed if message[0] == messages.CHANGED else self._said
                told[words.rank] = words
                if words.sees and wire in self._far:
                    self.seeing[words.rank] = wire
        except EOFError:
            self._heard.unregister(wire)
        return news

    def close(self) -> None:
        """End the ranks in peace."""
        if self._over is None:
            self._over = EngineDeadError("the engine was closed", "Load another one.")
            with suppress(EOFError):  # one that has ended needs no word
                self.send(messages.END)
            until = time.monotonic() + 5
            while len(self._endings) < self.ranks - 1 and time.monotonic() < until:
                time.sleep(0.01)
            self._stop()

    def _stop(self) -> None:
        self._closed.set()
        self.communicator.close()
        if self._machines is not None:
            self._machines.close()
        for process in [*self._processes.values(), *self._others]:
            process.kill()
        self._heard.close()
        self._listener.close()
        for wire in self._wires:
            wire.close()
        self._files.cleanup()
