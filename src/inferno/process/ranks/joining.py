"""Another machine's side: it joins the first one, starts its ranks, and joins again when they have
ended, as often as the first machine starts its engine."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve, field, frozen

from inferno import host
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import Device, Executor, FetchOptions, RankProcess, RankStart
from inferno.errors import CheckpointError, EngineDeadError, InfernoError, ModelNotFoundError
from inferno.plan import (
    Plan,
    find_device,
    plan_from_json,
    plan_to_json,
    reopen,
)
from inferno.plan.device_plan import for_device
from inferno.plan.numa import rank_cores
from inferno.plan.packed_folder import default_folder
from inferno.process.protocol import Failure
from inferno.process.ranks import identity, messages
from inferno.process.ranks.arriving import First, write_first
from inferno.process.ranks.following import agree_on_levels
from inferno.process.ranks.greeting import address, connect
from inferno.process.ranks.group import PLAN, STOPPED, STOPPED_SECONDS, Start
from inferno.process.ranks.pulse import PATIENT, converse
from inferno.process.ranks.wire import Wire

LONGEST_PAUSE = 5.0
"""Seconds between two tries to join, at most: 0.25, then twice as long each time."""
_WELCOME_SECONDS = 60.0
"""How long the first machine may take to answer: it may be loading its part."""
_PEACE_SECONDS = 5.0
"""How long ranks may take to end once one has ended in peace."""

log = logging.getLogger("inferno.process")


@frozen(kw_only=True)
class Joining:
    """What a machine joins, and how."""

    host: str
    port: int
    token: bytes = field(repr=False)
    model: str | None = None
    """Path or reference of its copy of the model; None: as on the first machine."""
    wait: float | None = None
    """Seconds to look for the first machine, before it has come and after it has gone; None: for
    ever."""
    stays: bool = True
    """Whether to look for it again once it has ended in peace."""
    rank: int | None = None
    """Which rank it is, if a launcher says so."""
    own_host: str | None = None
    """Address or network interface by which its ranks exchange tensors; None: the one by which the
    first machine is reached."""
    threads: int | None = None
    """Of each rank; None: as planned, or fewer where there are fewer cores."""
    offline: bool = False
    environ: Mapping[str, str] = field(factory=dict, repr=False)


class LostError(Exception):
    """The first machine has gone, or cannot be reached."""


def join(asked: Joining, catalog: Catalog | None = None, start: Start | None = None) -> None:
    """Join, and join again, until the first machine has ended in peace or cannot be reached, each
    for `wait` seconds. Raises what forbids it to join, and EngineDeadError if the first machine was
    lost. The thread that calls is the parent of its ranks. `start` replaces what the plan starts
    them with."""
    where, since, attempt, last = address(asked.host, asked.port), time.monotonic(), 0, ""
    versions = identity.versions()
    in_peace = False
    while True:
        try:
            begun = time.monotonic()
            in_peace = _join_once(asked, versions, catalog, start)
            since, last, attempt = time.monotonic(), "it has ended its ranks", 0
            log.info("the ranks of %s have ended%s", where, " in peace" if in_peace else "")
            if in_peace and not asked.stays:
                return
        except (LostError, OSError, EOFError) as error:
            lost = str(error) or type(error).__name__
            if isinstance(error, LostError):
                in_peace, since = False, time.monotonic()
                attempt = 0 if since - begun > LONGEST_PAUSE else attempt
            if lost != last:
                log.info("%s: %s; trying again", where, lost)
            last = lost
        pause = min(0.25 * 2.0**attempt, LONGEST_PAUSE)
        attempt = min(attempt + 1, 10)
        if asked.wait is not None and time.monotonic() - since + pause > asked.wait:
            if in_peace:
                return
            raise EngineDeadError(
                f"{where} cannot be joined: {last}",
                "Start the first machine's engine, or wait longer for it: --wait SECONDS.",
            )
        time.sleep(pause)


def _join_once(
    asked: Joining, versions: dict[str, str], catalog: Catalog | None, start: Start | None
) -> bool:
    """Join once, and be this machine's ranks until they end. Returns whether they ended in peace.
    Raises LostError, OSError and EOFError if the first machine is gone, InfernoError if this one
    cannot join."""
    connection = connect(asked.host, asked.port, asked.token)
    with ExitStack() as undo:
        wire = Wire(connection)
        undo.callback(wire.close)
        arrival = messages.Arrival(name=identity.machine_name(), versions=versions, rank=asked.rank)
        wire.send(messages.ARRIVAL, messages.encode(arrival))
        if (answer := wire.receive(_WELCOME_SECONDS)) is None:
            raise LostError("it does not answer")
        if answer[0] == messages.REFUSED:
            refused: messages.Refused = messages.decode_refused(answer[1])
            if refused.again:
                raise LostError(refused.failure.cause)
            raise refused.failure.error()
        welcome: messages.Welcome = messages.decode_welcome(answer[1])
        try:
            plan, planned = _prepared(asked, welcome, catalog)
        except Exception as error:
            with suppress(EOFError, OSError):
                wire.send(messages.DECLINED, messages.encode(Failure.of(error)))
            raise
        hostname = asked.own_host or connection.getsockname()[0]
        folder = Path(undo.enter_context(TemporaryDirectory(prefix="inferno_ranks_")))
        _write(folder, plan, welcome, asked, hostname)
        wire.send(messages.STARTED)
        ranks = Ranks(folder, plan, welcome.ranks, start or planned)
        undo.callback(ranks.kill)
        where = address(asked.host, asked.port)
        names = ", ".join(map(str, welcome.ranks))
        log.info("joined %s: %s, rank %s", where, plan.model_id, names)
        try:
            heard = converse(wire, PATIENT, ranks.go_on, lambda kind, body: None, ranks.tell(wire))
        except (EOFError, OSError) as error:
            if ranks.end_in_peace():
                return True
            raise LostError("it has closed the connection") from error
        if not heard:
            raise LostError("it is not heard: it is stopped, or the network is down")
        return ranks.end_in_peace()


def _prepared(
    asked: Joining, welcome: messages.Welcome, catalog: Catalog | None
) -> tuple[Plan, Start]:
    """Return the plan for this machine, and what starts its ranks. Raises InfernoError if what it
    has is not what the plan was made with."""
    given = plan_from_json(welcome.plan)
    assert given.ranks is not None, "a plan with ranks"
    catalog = catalog or load_catalog(disable=given.disable, only=given.only)
    plan = _own(asked, given, welcome.ranks, catalog)
    try:
        opened = reopen(plan, catalog)
    except (CheckpointError, ModelNotFoundError, OSError) as error:
        raise _lacking(given, plan, error) from error
    with opened:
        agree_on_levels(evolve(opened, rank=welcome.ranks[0]))
        here = identity.model_identity(opened.checkpoint)
    identity.agree_on_model(welcome.model, here, given.ref, plan.ref)
    use = given.ranks
    item = catalog.named(Executor, use.executor, use.distribution).item
    assert item.start is not None, "it was chosen to start ranks"
    return plan, item.start


def _own(asked: Joining, plan: Plan, numbers: list[int], catalog: Catalog) -> Plan:
    """Return the plan with this machine's paths, cores and threads."""
    assert plan.ranks is not None, "a plan with ranks"
    ref = asked.model or plan.ref
    fetch = FetchOptions(offline=asked.offline, progress=False)
    try:
        path = str(catalog.source_of(ref).item.fetch(ref, fetch))
    except (ModelNotFoundError, CheckpointError, OSError) as error:
        raise _lacking(plan, plan, error) from error
    use, cores = plan.ranks, host.usable_cores()
    if use.devices and numbers[0] >= use.here:  # the first ones of another machine
        order = sorted({*use.devices})
        devices = tuple(order.index(number) for number in use.devices)
        plan, use = for_device(plan, devices[0]), evolve(use, devices=devices)
    if use.numa:
        devices_here = map(use.device_of, numbers)
        near = [_numa_node(plan.device, number) for number in devices_here if number is not None]
        bound = rank_cores(use.numa, len(numbers), host.numa_nodes(), near)
        by_rank = dict(zip(numbers, bound, strict=True))
        use = evolve(use, cores=tuple(by_rank.get(rank, ()) for rank in range(use.count)))
    packed = plan.packed_cache and str(default_folder(asked.environ))
    drafts = plan.speculation and evolve(plan.speculation, draft=None)  # rank 0 drafts alone
    threads = asked.threads or max(1, min(plan.threads, cores // len(numbers)))
    return evolve(
        plan,
        ref=ref,
        path=path,
        origin=None,  # the model's identity is compared instead
        ranks=use,
        packed_cache=packed,
        speculation=drafts,
        threads=threads,
    )


def _numa_node(planned: Device, number: int) -> int | None:
    """Return the node of a device of the planned kind. Raises DeviceError if this machine lacks
    it."""
    return find_device(evolve(planned, index=number).torch_name).numa_node


def _lacking(given: Plan, plan: Plan, error: Exception) -> InfernoError:
    cause = error.cause if isinstance(error, InfernoError) else str(error)
    return CheckpointError(
        f"the first machine's model {given.ref} cannot be opened here: {cause}",
        "Name this machine's copy: --model PATH.",
    )


def _write(
    folder: Path, plan: Plan, welcome: messages.Welcome, asked: Joining, own_host: str
) -> None:
    """Write what ranks find in their folder."""
    (folder / PLAN).write_text(plan_to_json(plan), encoding="utf-8")
    first = First(
        host=asked.host,
        port=asked.port,
        group=welcome.group,
        own_host=own_host,
        folder=welcome.folder,
    )
    write_first(folder, first, asked.token)


class Ranks:
    """This machine's ranks, while they run. Only the thread that made them calls."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        numbers: list[int],
        start: Start,
    ) -> None:
        assert plan.ranks is not None, "a plan with ranks"
        self._processes = dict[int, RankProcess]()
        self._endings = dict[int, str]()
        self._told = set[int]()
        self._stopped_since = dict[int, float]()
        self._stopped = set[int]()
        for number in numbers:
            command = sys.executable, "-m", "inferno.process.ranks"
            what = RankStart(
                rank=number,
                ranks=plan.ranks.count,
                folder=str(folder),
                command=(*command, str(folder), str(number), str(os.getpid())),
            )
            try:
                process = self._processes[number] = start(what)
            except OSError as error:
                self._endings[number] = f"could not be started: {error}"
                continue
            attend = threading.Thread(target=self._attend, args=(number, process), daemon=True)
            attend.start()

    def _attend(self, number: int, process: RankProcess) -> None:
        ending = process.wait()
        self._endings[number] = f"{STOPPED} {ending}" if number in self._stopped else ending

    def go_on(self) -> bool:
        """Whether none has ended that the first machine has been told of."""
        return not self._told

    def tell(self, wire: Wire) -> Callable[[], None]:
        """Return what tells the first machine which have ended, and ends those that are stopped."""

        def told() -> None:
            for number, how in [*self._endings.items()]:
                if number not in self._told:
                    self._told.add(number)
                    wire.send(messages.ENDED, messages.encode(messages.Ended(number, how)))
            for number, process in self._processes.items():
                if not process.is_stopped():
                    self._stopped_since.pop(number, None)
                    continue
                since = self._stopped_since.setdefault(number, time.monotonic())
                if time.monotonic() - since > STOPPED_SECONDS:
                    self._stopped.add(number)
                    process.kill()

        return told

    def end_in_peace(self) -> bool:
        """Wait a moment for the others once one has ended. Returns whether all have ended in peace:
        rank 0 has told them to."""
        until = time.monotonic() + _PEACE_SECONDS
        while self._peaceful and len(self._endings) < len(self._processes):
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        return self._peaceful and len(self._endings) == len(self._processes) > 0

    @property
    def _peaceful(self) -> bool:
        """Whether one has ended, and all that have were told to."""
        return bool(self._endings) and set(self._endings.values()) == {messages.PEACE}

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
