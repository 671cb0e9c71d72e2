"""Asks the engines in turn and keeps what was found."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import client
from attrs import frozen
from cells import COLD, FIRST, PEAK, PLAIN_LEN, Cell
from engines import Engine, EngineError, Room, Server, Worker
from machine import Neighbours, Probe, Speed, available_gigabytes, peak_gigabytes, wait_for_quiet
from models import Shape
from samples import START, Run, Sample, keep, skip
from weights import Weights

_SPARE_GIGABYTES = 2.0
"""What must be free beyond an engine's weights to start it."""
_SLOW_START = 60.0
"""Seconds beyond which an engine is started once, not in every round."""

Process = TypeVar("Process", Worker, Server)
T = TypeVar("T")


@frozen(kw_only=True)
class Plan:
    """How much is measured, and where."""

    work: Path
    rounds: int
    """Undisturbed ones of each cell."""
    threads: int
    deadline: float
    """No round is begun after this `time.monotonic()`, but one with whatever was started."""

    @property
    def samples(self) -> Path:
        return self.work / "samples.jsonl"


@frozen
class Entry:
    """An engine and what it is to run."""

    engine: Engine
    variant: str
    python: Path
    weights: Weights


class Bench:
    """The engines of one class of formats. One that fails is left out from there on; why is kept
    with the samples."""

    def __init__(
        self,
        run: Run,
        format: str,
        shape: Shape,
        entries: Sequence[Entry],
        plan: Plan,
        probe: Probe,
    ) -> None:
        self._run, self._format, self._shape, self._plan, self._probe = (
            run,
            format,
            shape,
            plan,
            probe,
        )
        self._entries = {entry.engine.name: entry for entry in entries}
        self._versions: dict[str, str] = {}
        self._levels: dict[str, str] = {}
        self._owed = False
        """A round, to engines that were just started: a start may take all the time there is."""

    def cold_starts(self) -> None:
        """Every engine anew in each round. A first start, which may compile and convert, does not
        count, unless it was so slow that there is no second one."""
        if self._is_over() or self._is_done(COLD, self._quick_starters()):
            return
        for name in [*self._having(COLD)]:
            self._cold_start(name, FIRST, self._run.next_round(self._format, FIRST))
        self._owed = True
        for round_ in self._until_clean(COLD, self._quick_starters()):
            for name in _in_turn([*self._quick_starters()], round_):
                self._cold_start(name, COLD, round_)

    def _cold_start(self, name: str, cell: str, round_: int) -> None:
        with self._failing(name, START):
            with self._sample(name, cell, round_) as figures:
                worker = self._start(Worker, self._entries[name], self._room(PLAIN_LEN))
                figures |= {"value": worker.cold_start, "peak_gb": peak_gigabytes(worker.pid)}
                self._hear(worker)
            worker.close()

    def _hear(self, worker: Worker) -> None:
        self._versions[worker.engine.name] = worker.version
        self._levels[worker.engine.name] = worker.level

    def _having(self, cell: str) -> dict[str, Entry]:
        return {name: entry for name, entry in self._entries.items() if entry.engine.has(cell)}

    def _quick_starters(self) -> dict[str, Entry]:
        slow = {
            sample.engine
            for sample in self._run.samples
            if (sample.format, sample.cell) == (self._format, FIRST)
            and sample.figures["value"] > _SLOW_START
        }
        return {name: entry for name, entry in self._having(COLD).items() if name not in slow}

    def in_process(self, chosen: Mapping[str, Cell]) -> None:
        """Cells that need the same context share the processes."""
        rooms: dict[tuple[bool, int], dict[str, Cell]] = {}
        for name, cell in chosen.items():
            rooms.setdefault((cell.kept > 0, cell.max_model_len), {})[name] = cell
        for (keeps, length), cells in rooms.items():
            self._in_room(cells, self._room(length, keeps=keeps))

    def _room(self, max_model_len: int, *, keeps: bool = False) -> Room:
        gigabytes = max_model_len * self._shape.cache_bytes / 1e9 if keeps else 0
        return Room(
            work=self._plan.work,
            threads=self._plan.threads,
            max_model_len=max_model_len,
            keeps=keeps,
            cache_gigabytes=max(2, math.ceil(1.1 * gigabytes)),
        )

    def _in_room(self, chosen: Mapping[str, Cell], room: Room) -> None:
        if self._is_over() or all(self._is_done(cell, self._having(cell)) for cell in chosen):
            return
        workers = self._start_all(Worker, room, chosen)
        for worker in workers.values():
            self._hear(worker)
        for cell_name, cell in chosen.items():
            members = {n: worker for n, worker in workers.items() if worker.engine.has(cell_name)}
            if self._is_over() or self._is_done(cell_name, members):
                continue
            for name in [
                *members
            ]:  # kernels are chosen, and buffers made, when a shape is first seen
                with self._failing(name, cell_name, workers, members):
                    members[name].generate(cell.prompts(-1), min(cell.new_tokens, 3))
            for round_ in self._until_clean(cell_name, members):
                for name in _in_turn([*members], round_):
                    with self._failing(name, cell_name, workers, members):
                        self._ask(members[name], cell_name, cell, round_)
        round_ = self._run.next_round(self._format, PEAK)
        for name, worker in workers.items():
            if worker.engine.has(PEAK) and not room.keeps:
                with self._sample(name, PEAK, round_) as figures:
                    figures["value"] = peak_gigabytes(worker.pid)
            worker.close()

    def _ask(self, worker: Worker, cell_name: str, cell: Cell, round_: int) -> None:
        prompts, weight_bytes = (
            cell.prompts(round_),
            self._entries[worker.engine.name].weights.nbytes,
        )

        def floor(speed: Speed) -> float:
            return cell.floor(prompts, self._shape, weight_bytes, speed)

        with self._sample(worker.engine.name, cell_name, round_, floor) as figures:
            first, total = worker.generate(prompts, cell.new_tokens)
            figures |= {
                "value": cell.value(prompts, first, total),
                "seconds": total - first * cell.decode_only,
                "first": first,
            }

    def over_http(self, chosen: Mapping[str, tuple[int, int]]) -> None:
        with_server = {
            name: entry for name, entry in self._entries.items() if entry.engine.serve is not None
        }
        if self._is_over() or all(self._is_done(cell, with_server) for cell in chosen):
            return
        servers = self._start_all(Server, self._room(PLAIN_LEN), chosen)
        for cell, (clients, requests) in chosen.items():
            if self._is_over() or self._is_done(cell, servers):
                continue
            for name in [*servers]:
                with self._failing(name, cell, servers):
                    _served(servers[name], clients, 1, -1)
            for round_ in self._until_clean(cell, servers):
                for name in _in_turn([*servers], round_):
                    with self._failing(name, cell, servers):
                        with self._sample(name, cell, round_) as figures:
                            served = _served(servers[name], clients, requests, round_)
                            figures |= {"value": served.tokens_per_second, **attrs.asdict(served)}
        for server in servers.values():
            server.close()

    def _start_all(
        self, kind: type[Process], room: Room, cells: Iterable[str]
    ) -> dict[str, Process]:
        started = {}
        for name, entry in [*self._entries.items()]:
            if kind is Worker and not any(map(entry.engine.has, cells)):
                continue
            if kind is Worker or entry.engine.serve is not None:
                with self._failing(name, START):
                    started[name] = self._start(kind, entry, room)
        self._owed = True
        return started

    def _start(self, kind: type[Process], entry: Entry, room: Room) -> Process:
        needed = entry.weights.nbytes / 1e9 + _SPARE_GIGABYTES + room.keeps * room.cache_gigabytes
        if (free := available_gigabytes()) < needed:
            raise EngineError(
                f"{free:.1f} GB of memory left, {needed:.1f} needed: run it in a piece of its "
                f"own, with --run"
            )
        return kind(entry.engine, entry.variant, entry.python, entry.weights.path, room)

    @contextmanager
    def _failing(self, name: str, cell: str, *started: dict[str, Process]) -> Iterator[None]:
        """Leave an engine out once it fails."""
        try:
            yield
        except EngineError as error:
            say(f"{name} {self._entries[name].variant} left out, {cell}: {error}")
            skip(self._plan.samples, self._run, (self._format, name, cell), str(error))
            del self._entries[name]
            for processes in started:
                del processes[name]

    def _is_over(self) -> bool:
        return not self._owed and time.monotonic() > self._plan.deadline

    def _is_done(self, cell: str, engines: Mapping[str, object]) -> bool:
        return not engines or self._run.is_done(self._format, cell, engines, self._plan.rounds)

    def _until_clean(self, cell: str, engines: Mapping[str, object]) -> Iterator[int]:
        """Rounds, until enough of them were undisturbed or time is over."""
        while not self._is_done(cell, engines):
            if self._is_over():
                say(
                    f"{cell} {self._format}: time is over; the same command with --run "
                    f"'{self._run.name}' goes on"
                )
                return
            self._owed = False
            yield self._run.next_round(self._format, cell)

    @contextmanager
    def _sample(
        self, name: str, cell: str, round_: int, floor: Callable[[Speed], float] | None = None
    ) -> Iterator[dict[str, float]]:
        """One measurement: fill in its figures."""
        wait_for_quiet()
        figures: dict[str, float] = {}
        before = self._probe()
        with Neighbours() as neighbours:
            yield figures
        speed = before.mean(self._probe())
        if floor is not None:
            figures["floor"] = floor(speed)
        sample = Sample(
            format=self._format,
            engine=name,
            variant=self._entries[name].variant,
            version=self._versions.get(name, ""),
            cell=cell,
            round=round_,
            figures=figures,
            speed=speed,
            neighbours=neighbours.cores,
            clean=neighbours.clean,
            date=time.strftime("%Y-%m-%d %H:%M"),
            threads=self._plan.threads,
            stolen=neighbours.stolen,
            level=self._levels.get(name, ""),
        )
        keep(self._plan.samples, self._run, sample)
        shown = ", ".join(f"{key} {value:.3f}" for key, value in figures.items())
        speeds = (
            f"{speed.gigabytes:.0f} GB/s, {speed.gigaflops:.0f} GFLOP/s, others "
            f"{neighbours.cores:.2f} cores, host {neighbours.stolen:.2f}"
        )
        say(f"{cell} {round_} {name} {sample.variant}: {shown}; {speeds}")


def _served(server: Server, clients: int, requests: int, round_: int) -> client.Served:
    """Raises EngineError where an answer is not what it should be."""
    try:
        return client.load(server.url, clients, requests, round_)
    except (OSError, EOFError, RuntimeError, AssertionError) as error:
        raise EngineError(f"{type(error).__name__}: {error}"[:300]) from None


def _in_turn(items: Sequence[T], round_: int) -> list[T]:
    """Another one first in every round."""
    start = round_ % len(items)
    return [*items[start:], *items[:start]]


def say(*words: Any) -> None:
    print(*words, file=sys.stderr, flush=True)
