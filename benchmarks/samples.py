"""What was measured: samples, kept one a line in a file, so that a run can be made in pieces and
reported at any time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field, frozen
from machine import Machine, Speed

START = "start"
"""In place of a cell, where an engine did not even start."""


@frozen(kw_only=True)
class Sample:
    """One measurement."""

    format: str
    """The class of formats in which engines are compared."""
    engine: str
    variant: str
    """What the engine calls its format."""
    version: str
    cell: str
    round: int
    figures: Mapping[str, float]
    """`value` is the cell's figure."""
    speed: Speed
    """The machine's, around it."""
    neighbours: float
    """Cores that other processes used meanwhile."""
    clean: bool
    date: str
    threads: int
    stolen: float = 0.0
    """Cores that the host took away meanwhile."""
    level: str = ""
    """The instructions that the engine says it chose."""


Round = Mapping[str, Sample]
"""By engine."""


@define
class Run:
    """All samples of one model under one name."""

    name: str
    model: str
    samples: list[Sample] = field(factory=list)
    machine: Machine | None = None
    """Where it was measured last."""
    skipped: dict[tuple[str, str, str], str] = field(factory=dict)
    """(format, engine, cell) -> why it was left out from there on."""

    def rounds(self, format: str, cell: str) -> dict[int, dict[str, Sample]]:
        rounds: dict[int, dict[str, Sample]] = {}
        for sample in self.samples:
            if (sample.format, sample.cell) == (format, cell):
                rounds.setdefault(sample.round, {})[sample.engine] = sample
        return rounds

    def next_round(self, format: str, cell: str) -> int:
        return max(self.rounds(format, cell), default=-1) + 1

    def counted(self, format: str, cell: str) -> list[Round]:
        """The cell's undisturbed rounds, or all where those are less than half."""
        rounds = list(self.rounds(format, cell).values())
        clean = [samples for samples in rounds if _is_clean(samples)]
        return list(clean if 2 * len(clean) >= len(rounds) else rounds)

    def is_done(self, format: str, cell: str, engines: Iterable[str], wanted: int) -> bool:
        """Whether all of these engines were measured side by side in as many undisturbed rounds, or
        twice as many rounds."""
        rounds = [
            samples
            for samples in self.rounds(format, cell).values()
            if samples.keys() >= set(engines)
        ]
        return sum(map(_is_clean, rounds)) >= wanted or len(rounds) >= 2 * wanted


def _is_clean(samples: Round) -> bool:
    return all(sample.clean for sample in samples.values())


def load(path: Path, name: str, model: str) -> Run:
    """What the file has of this run: nothing, if it is a new one."""
    run = Run(name, model)
    for line in _lines(path):
        if (line.pop("run", None), line.pop("model", None)) != (name, model):
            continue
        if "skipped" in line:
            run.skipped[line["format"], line["engine"], line["cell"]] = line["skipped"]
        elif "machine" in line:
            run.machine = Machine(**line["machine"])
        else:
            run.samples.append(Sample(**line | {"speed": Speed(**line["speed"])}))
    return run


def last_name(path: Path) -> str | None:
    """The run that was added to last."""
    return next((line["run"] for line in reversed(_lines(path)) if "run" in line), None)


def keep(path: Path, run: Run, sample: Sample) -> None:
    run.samples.append(sample)
    _append(path, {"run": run.name, "model": run.model, **attrs.asdict(sample)})


def note(path: Path, run: Run, machine: Machine) -> None:
    """Keep what a run is measured on. Its samples follow."""
    run.machine = machine
    _append(path, {"run": run.name, "model": run.model, "machine": attrs.asdict(machine)})


def skip(path: Path, run: Run, place: tuple[str, str, str], reason: str) -> None:
    """`place` is a format, an engine and a cell."""
    if run.skipped.get(place) == reason:
        return
    run.skipped[place] = reason
    format, engine, cell = place
    _append(
        path,
        {
            "run": run.name,
            "model": run.model,
            "format": format,
            "engine": engine,
            "cell": cell,
            "skipped": reason,
        },
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, document: Mapping[str, Any]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(document) + "\n")
