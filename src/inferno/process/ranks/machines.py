"""Rank 0's side of other machines: where they join, which ranks they get, and how these end."""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from attrs import define, field

from inferno.contracts import MachineStart, RankStart
from inferno.errors import EngineDeadError, OptionError
from inferno.plan import Opened, Plan, plan_to_json
from inferno.plan.rank_use import JoinUse
from inferno.process.protocol import Failure
from inferno.process.ranks import messages
from inferno.process.ranks.greeting import address, admit, make_token, read_token
from inferno.process.ranks.hosts import address_of
from inferno.process.ranks.identity import agree_on_versions, model_identity, versions
from inferno.process.ranks.pulse import LOST, converse
from inferno.process.ranks.wire import Wire

INFERNO = sys.executable, "-m", "inferno"
MOST = 32
"""Connections that may be greeted at once; others are closed at once."""
_ARRIVAL_SECONDS = 60.0
"""How long a machine may take to answer: its model's headers are read in that time."""

log = logging.getLogger("inferno.process")


@define(eq=False)
class JoinedRank:
    """A rank on another machine (`contracts.RankProcess`)."""

    machine: JoinedMachine
    number: int
    ending: str = ""
    _ended: threading.Event = field(factory=threading.Event)

    def end(self, how: str) -> None:
        self.ending = self.ending or how
        self._ended.set()

    def wait(self) -> str:
        self._ended.wait()
        return self.ending

    def is_stopped(self) -> bool:
        return False  # its own machine sees that

    def kill(self) -> None:
        self.machine.leave()


class JoinedMachine:
    """Another machine that has joined. A thread of its own reads what it says."""

    def __init__(self, name: str, host: str, wire: Wire, numbers: Sequence[int]) -> None:
        self.name = f"{name} ({host})"
        self.ranks = [JoinedRank(self, number) for number in numbers]
        self._wire, self._left = wire, threading.Event()

    def attend(self) -> None:
        """Exchange signs of life until all its ranks have ended, or it is lost."""
        how = f"left with its machine {self.name}"
        try:
            if not converse(self._wire, LOST, self._goes_on, self._take):
                how = f"is not heard: {self.name} is stopped, or the network is down"
        except (EOFError, OSError):
            pass
        finally:
            for rank in self.ranks:
                rank.end(how)
            self._wire.close()

    def _goes_on(self) -> bool:
        return not self._left.is_set() and not all(rank.ending for rank in self.ranks)

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == messages.ENDED:
            ended: messages.Ended = messages.decode_ended(body)
            for rank in self.ranks:
                if rank.number == ended.rank:
                    rank.end(f"{ended.how} on {self.name}")

    def leave(self) -> None:
        """End its ranks: it sees that this machine is gone. Any thread may call it."""
        self._left.set()
        self._wire.hang_up()


class Machines:
    """Where other machines join, for one group of ranks."""

    def __init__(self, opened: Opened, versions_here: Mapping[str, str] | None = None) -> None:
        """Listen. Raises OptionError."""
        assert opened.plan.ranks is not None, "a plan with ranks"
        assert opened.plan.ranks.join is not None, "that join"
        self.use: JoinUse = opened.plan.ranks.join
        make_token(self.use.token_file)
        self.token = read_token(self.use.token_file)
        self._versions = versions_here or versions()
        self._plan, self._model = plan_to_json(opened.plan), model_identity(opened.checkpoint)
        self.folder = ""
        """Where the ranks meet, if they are on one machine."""
        self.group = secrets.token_hex(16)
        self.arrived = SimpleQueue[Wire]()
        """Connections of ranks, which know the token and look for this group. One may have received
        more than the greeting."""
        self._free = list(range(self.use.each, opened.plan.ranks.count))
        """Ranks that no machine has yet."""
        self._joined: dict[int, JoinedRank] = {}
        self._news = threading.Condition()
        self._closed = False
        self._refused = set[str]()
        """Hosts that were told to have another token: once each."""
        self._greeting = threading.BoundedSemaphore(MOST)
        self.host = address_of(self.use.host)
        self._listener = _listener(self.host, self.use.port)
        self.address = address(self.host, self._listener.getsockname()[1])

    def open(self) -> None:
        """Let others join."""
        threading.Thread(target=self._accept, name="inferno join", daemon=True).start()

    def start_of(self, plan: Plan) -> MachineStart:
        """Return what is to be started on the other machines."""
        return MachineStart(
            machines=self.awaited,
            ranks=self.use.each,
            threads=plan.threads,
            gpus=0 if plan.device.kind == "cpu" else self.use.each,
            address=self.address,
            command=(*INFERNO, "rank", "--join", self.address, "--wait", "10"),
            token=self.token.decode("utf-8", "replace"),
        )

    @property
    def command(self) -> str:
        """What is run on the other machines."""
        return f"inferno rank --join {self.address}"

    @property
    def awaited(self) -> int:
        """How many processes are still to join."""
        return len(self._free) // self.use.each

    def start(self, what: RankStart) -> JoinedRank:
        """Return a rank once a machine has joined that has it (`contracts.Executor.start`). Raises
        OSError if the group is closed meanwhile."""
        with self._news:
            self._news.wait_for(lambda: self._closed or what.rank in self._joined)
            if self._closed:
                raise OSError("nothing has joined")
            return self._joined[what.rank]

    def close(self) -> None:
        """Stop listening. Machines that have joined are left (`JoinedRank.kill`)."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        with suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with suppress(Empty):
            while True:
                self.arrived.get_nowait().close()

    def _accept(self) -> None:
        while True:
            try:
                connection, (host, *_) = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # no descriptor is left, or whoever called has gone
                continue
            if not self._greeting.acquire(blocking=False):
                connection.close()
                continue
            given = connection, str(host)
            threading.Thread(target=self._greet, args=given, daemon=True).start()

    def _greet(self, connection: socket.socket, host: str) -> None:
        """Hear who has connected; then attend the machine, if it is one."""
        machine: JoinedMachine | None = None
        try:
            if admit(connection, self.token):
                machine = self._hear(connection, host)
            else:
                self._tell(host)
                connection.close()
        except Exception:  # junk in any form, and those who go away meanwhile
            connection.close()
        finally:
            self._greeting.release()
        if machine is not None:
            machine.attend()

    def _tell(self, host: str) -> None:
        if host not in self._refused and len(self._refused) < MOST:
            self._refused.add(host)
            log.warning("%s was refused: it does not know the token of the ranks", host)

    def _hear(self, connection: socket.socket, host: str) -> JoinedMachine | None:
        wire = Wire(connection)
        if (first := wire.receive(_ARRIVAL_SECONDS)) is None:
            raise EOFError("it says nothing")
        kind, body = first
        if kind == messages.ARRIVAL:
            return self._welcome(wire, host, messages.decode_arrival(body))
        arriving: messages.ArrivingRank = messages.decode_rank(body)
        if kind != messages.RANK or not hmac.compare_digest(arriving.group, self.group):
            raise EOFError("it is no rank of this group")
        self.arrived.put(wire)
        return None

    def _welcome(self, wire: Wire, host: str, arrival: messages.Arrival) -> JoinedMachine | None:
        """Give a machine its ranks, if it may have any and wants them."""
        name = f"{arrival.name} ({host})"
        if (error := agree_on_versions(arrival.versions, self._versions, name)) is not None:
            log.error("%s: refused. %s", error.cause, error.remedy)
            self._refuse(wire, error, again=False)
            return None
        numbers = self._take(arrival.rank)
        if not numbers:
            taken = EngineDeadError(
                "all ranks have their machines already", "It waits until one is needed."
            )
            self._refuse(wire, taken, again=True)
            return None
        try:
            welcome = messages.Welcome(
                plan=self._plan,
                ranks=numbers,
                group=self.group,
                model=self._model,
                folder=self.folder,
            )
            wire.send(messages.WELCOME, messages.encode(welcome))
            answer = wire.receive(_ARRIVAL_SECONDS)
            if answer is None or answer[0] != messages.STARTED:
                if answer is not None and answer[0] == messages.DECLINED:
                    failure: Failure = messages.decode_failure(answer[1])
                    log.error("%s cannot join: %s %s", name, failure.cause, failure.remedy)
                raise EOFError("it has not started its ranks")
        except BaseException:
            with self._news:
                self._free = sorted([*self._free, *numbers])
            raise
        machine = JoinedMachine(arrival.name, host, wire, numbers)
        with self._news:
            self._joined |= {rank.number: rank for rank in machine.ranks}
            self._news.notify_all()
            log.info("%s has joined with rank %s", name, ", ".join(map(str, numbers)))
        return machine

    def _refuse(self, wire: Wire, error: Exception, *, again: bool) -> None:
        refused = messages.Refused(Failure.of(error), again)
        wire.send(messages.REFUSED, messages.encode(refused))
        wire.close()

    def _take(self, asked: int | None) -> list[int]:
        """Take the ranks of a machine that joins: the next ones, or the one that it asks for."""
        with self._news:
            wanted = self._free[: self.use.each] if asked is None else [asked]
            if self._closed or not set(wanted) <= set(self._free):
                return []
            self._free = [rank for rank in self._free if rank not in wanted]
            return wanted


def _listener(host: str, port: int) -> socket.socket:
    """Raises OptionError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise OptionError(
            f"ranks cannot join at {address(host, port)}: {error.strerror or error}",
            "Name an address of this machine and a free port: --rank-host HOST --rank-port PORT.",
        ) from error
