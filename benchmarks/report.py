"""Samples to Markdown tables: medians, ratios within a round, shares of what the machine could do."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field, frozen
from cells import Cell
from machine import Speed
from models import Shape

COLD, PEAK = "cold-start", "peak"
OURS = "inferno"


@frozen
class Sample:
    """One measurement."""

    engine: str
    cell: str
    round: int
    figures: Mapping[str, float]
    """`value` is the cell's figure."""
    speed: Speed
    """The machine's, around it."""
    neighbours: float
    """Cores that others used meanwhile."""
    clean: bool


@define
class Run:
    """What was run, and all that was found."""

    model: str
    shape: Shape
    cells: Mapping[str, Cell]
    threads: int
    date: str
    samples: list[Sample] = field(factory=list)
    versions: dict[str, str] = field(factory=dict)

    def num_clean(self, cell: str) -> int:
        """Rounds in which nobody disturbed any engine."""
        return len(self._clean(cell))

    def counted(self, cell: str) -> list[dict[str, Sample]]:
        """The cell's rounds, by engine: the undisturbed ones, or all where those are less than half."""
        clean, rounds = self._clean(cell), self._rounds(cell)
        return clean if 2 * len(clean) >= len(rounds) else rounds

    def _clean(self, cell: str) -> list[dict[str, Sample]]:
        return [samples for samples in self._rounds(cell) if all(sample.clean for sample in samples.values())]

    def _rounds(self, cell: str) -> list[dict[str, Sample]]:
        rounds: dict[int, dict[str, Sample]] = {}
        for sample in self.samples:
            if sample.cell == cell:
                rounds.setdefault(sample.round, {})[sample.engine] = sample
        return list(rounds.values())


def report(run: Run) -> str:
    engines = list(dict.fromkeys(sample.engine for sample in run.samples))
    versions = ", ".join(f"{engine} {run.versions[engine]}" for engine in engines if engine in run.versions)
    speeds = [sample.speed for sample in run.samples]
    gigabytes = sorted(speed.gigabytes for speed in speeds)
    gigaflops = statistics.median(speed.gigaflops for speed in speeds)
    engines_used = f" {versions}." if versions else ""
    head = (
        f"{run.model}, bf16, {run.threads} threads, {run.date}.{engines_used} Memory read at {gigabytes[0]:.0f} to "
        f"{gigabytes[-1]:.0f} GB/s (median {statistics.median(gigabytes):.0f}), bf16 products {gigaflops:.0f} GFLOP/s."
    )
    return "\n\n".join([head, *filter(None, (_speeds(run, engines), _starts(run, engines), _served(run, engines)))])


def _speeds(run: Run, engines: Sequence[str]) -> str:
    rows = []
    for name, cell in run.cells.items():
        row = [name]
        for engine in engines:
            found = [rounds for rounds in run.counted(name) if engine in rounds]
            row.append(_speed(run, cell, [rounds[engine] for rounds in found]) if found else "")
        row += _ratios(run.counted(name), engines, more_is_better=True)
        rows.append([*row, str(len(run.counted(name)))])
    peers = [f"inferno / {engine}" for engine in engines if engine != OURS]
    return _table(["tokens/s (share of floor)", *engines, *peers, "rounds"], rows)


def _speed(run: Run, cell: Cell, samples: Sequence[Sample]) -> str:
    value = statistics.median(sample.figures["value"] for sample in samples)
    shares = [cell.floor(cell.prompts(sample.round), run.shape, sample.speed) / sample.figures["seconds"] for sample in samples]
    return f"{value:.1f} ({statistics.median(shares):.0%})"


def _starts(run: Run, engines: Sequence[str]) -> str:
    rows = []
    for title, cell, key in (
        ("start to first token, s", COLD, "value"),
        ("peak memory at the first token, GB", COLD, "peak_gb"),
        ("peak memory after all cells, GB", PEAK, "value"),
    ):
        found = run.counted(cell)
        if found:
            values = [_median(found, engine, key) for engine in engines]
            ratios = _ratios(found, engines, more_is_better=False, key=key)
            rows.append([title, *(f"{v:.2f}" if v is not None else "" for v in values), *ratios])
    return _table(["", *engines, *(f"{engine} / inferno" for engine in engines if engine != OURS)], rows)


def _served(run: Run, engines: Sequence[str]) -> str:
    rows = []
    for cell in dict.fromkeys(sample.cell for sample in run.samples if sample.cell.startswith("http")):
        for engine in engines:
            found = [rounds for rounds in run.counted(cell) if engine in rounds]
            if found:
                ttft, itl, itl_99, speed = (
                    statistics.median(rounds[engine].figures[key] for rounds in found)
                    for key in ("ttft", "itl", "itl_99", "tokens_per_second")
                )
                row = [cell, engine, f"{ttft * 1000:.0f}", f"{itl * 1000:.1f}", f"{itl_99 * 1000:.1f}", f"{speed:.1f}"]
                rows.append([*row, str(len(found))])
    return _table(["", "engine", "first text, ms", "between texts, ms", "99 % of them, ms", "tokens/s, all", "rounds"], rows)


def _median(rounds: Sequence[Mapping[str, Sample]], engine: str, key: str) -> float | None:
    values = [samples[engine].figures[key] for samples in rounds if engine in samples]
    return statistics.median(values) if values else None


def _ratios(
    rounds: Sequence[Mapping[str, Sample]], engines: Sequence[str], *, more_is_better: bool, key: str = "value"
) -> Iterator[str]:
    """Medians of the ratios within each round, so that the machine's moods cancel. Above 1 inferno is the better."""
    for engine in engines:
        if engine == OURS:
            continue
        pairs = [(s[OURS].figures[key], s[engine].figures[key]) for s in rounds if OURS in s and engine in s]
        ratios = [ours / theirs if more_is_better else theirs / ours for ours, theirs in pairs]
        yield f"**{statistics.median(ratios):.2f}**" if ratios else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
