"""Measure inferno beside other engines, on models of well-known shapes, most with random weights.
See README.md.

python benchmarks/run.py [--model qwen3-0.6b] [--peers transformers,llama-cpp-python] [--formats
bf16,q8_0] [--setup]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import host_cost
from bench import Bench, Entry, Plan, say
from cells import COLD, HOST, LONG, cells
from engines import INFERNO, LLAMA_BENCH, PEERS, SHIPPED, Engine, EngineError
from goals import standing
from machine import Neighbours, Probe, this_machine
from models import SHAPES
from report import report
from samples import START, Run, Sample, keep, last_name, load, note, skip
from weights import FORMATS, formats_of, weights

HTTP_CELLS: Mapping[str, tuple[int, int]] = {"http-1": (1, 4), "http-16": (16, 1)}
"""Clients, and the requests of each."""


def _options() -> argparse.Namespace:
    known = [COLD, *cells(quick=False), *HTTP_CELLS, HOST]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=[*SHAPES, "all"], default="qwen3-0.6b")
    parser.add_argument(
        "--peers", default="transformers", help=f"comma-separated, of {', '.join(PEERS)}"
    )
    parser.add_argument(
        "--formats",
        default=f"bf16,{SHIPPED}",
        help=f"comma-separated, of {', '.join(FORMATS)}; a model has either {SHIPPED} or others",
    )
    parser.add_argument(
        "--cells",
        default=",".join(name for name in known if name not in LONG),
        help=f"comma-separated, of {', '.join(known)}",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="undisturbed ones wanted of each cell"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every engine"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of short answers: does it run?"
    )
    parser.add_argument("--setup", action="store_true", help="install peers that are missing")
    parser.add_argument(
        "--run", default="", help="name of a run: what it has already is not measured again"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no further round later than this; see --run",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="measure nothing; print the tables of --run, or of the last run",
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--work", type=Path, default=cache / "inferno-bench", help="models, environments, samples"
    )
    options = parser.parse_args()
    for name, allowed in (("peers", [*PEERS]), ("formats", [*FORMATS]), ("cells", known)):
        given = [part for part in getattr(options, name).split(",") if part]
        setattr(options, name, given)
        if unknown := set(given) - set(allowed):
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(allowed)}")
    if options.quick and options.run:
        parser.error("--quick measures other lengths, which belong into no run")
    if "llama-cpp-python" in options.peers and LLAMA_BENCH not in options.peers:
        options.peers.append(LLAMA_BENCH)  # how far its figures are from llama.cpp's own
    options.models = [*SHAPES] if options.model == "all" else [options.model]
    return options


def _engines(options: argparse.Namespace) -> Iterator[tuple[Engine, Path]]:
    """Those that are there, with their interpreters."""
    yield INFERNO, Path(sys.executable)
    for name in options.peers:
        engine, folder = PEERS[name], options.work / "venvs" / name
        if options.setup and engine.python(options.work) is None:
            say(f"installing {name} into {folder}")
            try:
                engine.set_up(options.work)
            except EngineError as error:
                say(f"{name}: {error}")
        python = engine.python(options.work)
        if python is None:
            say(f"skipped: {name} is not in {folder}; --setup installs it there")
        else:
            yield engine, python


def _entries(
    engines: Mapping[str, tuple[Engine, Path]], run: Run, format: str, options: argparse.Namespace
) -> Iterator[Entry]:
    for name in ("inferno", *options.peers):
        variant = (INFERNO if name == INFERNO.name else PEERS[name]).variants.get(format)
        if variant is None:
            continue
        if name not in engines:
            skip(options.work / "samples.jsonl", run, (format, name, START), "not installed")
            continue
        engine, python = engines[name]
        try:
            yield Entry(engine, variant, python, weights(engine, variant, run.model, options.work))
        except EngineError as error:
            say(f"{name} {variant} left out: {error}")
            skip(options.work / "samples.jsonl", run, (format, name, START), str(error))


def _measure(
    run: Run, engines: Mapping[str, tuple[Engine, Path]], plan: Plan, options: argparse.Namespace
) -> None:
    shape, probe = SHAPES[run.model], Probe(plan.threads)
    in_process = {
        name: cell for name, cell in cells(quick=options.quick).items() if name in options.cells
    }
    http = {name: load for name, load in HTTP_CELLS.items() if name in options.cells}
    if HOST in options.cells:
        _host_cost(run, plan, probe)
    for format in formats_of(run.model, options.formats):
        bench = Bench(run, format, shape, [*_entries(engines, run, format, options)], plan, probe)
        if COLD in options.cells:
            bench.cold_starts()
        if in_process:
            bench.in_process(in_process)
        if http:
            bench.over_http(http)


def _host_cost(run: Run, plan: Plan, probe: Probe) -> None:
    """Of the scheduler and the resident tables alone, once in a run."""
    if run.rounds(HOST, HOST):
        return
    with Neighbours() as neighbours:
        steps = host_cost.measure(256, 2000, 400, aligned=False)
    sample = Sample(
        format=HOST,
        engine=INFERNO.name,
        variant="",
        version=version("inferno"),
        cell=HOST,
        round=0,
        figures={"value": statistics.median(map(sum, steps))},
        speed=probe(),
        neighbours=neighbours.cores,
        clean=neighbours.clean,
        date=time.strftime("%Y-%m-%d %H:%M"),
        threads=plan.threads,
        stolen=neighbours.stolen,
    )
    keep(plan.samples, run, sample)


def main() -> None:
    options = _options()
    samples = options.work / "samples.jsonl"
    if options.report:
        name = options.run or last_name(samples) or ""
        for model in SHAPES:
            if (run := load(samples, name, model)).samples:
                print(f"{report(run)}\n\n{standing(run)}\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # with what it started
    options.work.mkdir(parents=True, exist_ok=True)
    name = options.run or time.strftime("%Y-%m-%d %H:%M:%S")
    engines = {engine.name: (engine, python) for engine, python in _engines(options)}
    plan = Plan(
        work=options.work,
        rounds=1 if options.quick else options.rounds,
        threads=options.threads,
        deadline=time.monotonic() + 60 * options.minutes,
    )
    for model in options.models:
        run = load(samples, name, model)
        note(samples, run, this_machine(options.threads))
        _measure(run, engines, plan, options)
        print(f"{report(run)}\n\n{standing(run)}\n")


if __name__ == "__main__":
    main()
