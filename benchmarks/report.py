"""Samples to Markdown tables: medians, ratios within a round, shares of what the machine could
do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from samples import START, Round, Run, Sample

COLD, FIRST, PEAK = "cold-start", "first-start", "peak"
"""Starts that count, the one before them, and the memory at the end."""
OURS = "inferno"


def report(run: Run) -> str:
    """Every format's tables, one after another."""
    if not run.samples:
        return f"{run.model}, run {run.name}: nothing was measured."
    formats = list(dict.fromkeys(sample.format for sample in run.samples))
    return "\n\n".join([_head(run), *(part for format in formats for part in _parts(run, format))])


def _head(run: Run) -> str:
    dates = sorted(sample.date for sample in run.samples)
    versions = dict.fromkeys(
        f"{sample.engine} {sample.version}" for sample in run.samples if sample.version
    )
    gigabytes = sorted(sample.speed.gigabytes for sample in run.samples)
    gigaflops = statistics.median(sample.speed.gigaflops for sample in run.samples)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    engines_used = f" {', '.join(versions)}." if versions else ""
    return (
        f"{run.model}, {run.samples[-1].threads} threads, {when}.{engines_used} Memory read "
        f"at {gigabytes[0]:.0f} to "
        f"{gigabytes[-1]:.0f} GB/s (median {statistics.median(gigabytes):.0f}), matrix "
        f"products {gigaflops:.0f} GFLOP/s."
    )


def _parts(run: Run, format: str) -> list[str]:
    samples = [sample for sample in run.samples if sample.format == format]
    variants = {sample.engine: sample.variant for sample in samples}
    engines = sorted(variants, key=lambda engine: engine != OURS)
    titles = [f"{engine} {variants[engine]}" for engine in engines]
    note = _left_out(run, format)
    tables = (
        _speeds(run, format, engines, titles),
        _starts(run, format, engines, titles),
        _served(run, format, engines),
    )
    return [part for part in (*tables, note) if part]


def _left_out(run: Run, format: str) -> str:
    """Engines that were not measured, unless they were later."""
    there = {(sample.engine, sample.cell) for sample in run.samples if sample.format == format}
    there |= {(sample.engine, START) for sample in run.samples if sample.format == format}
    failed = [
        (place, why)
        for place, why in run.skipped.items()
        if place[0] == format and place[1:] not in there
    ]
    reasons = "; ".join(f"{engine}, {cell}: {why}" for (_, engine, cell), why in failed)
    return f"Left out: {reasons}." if reasons else ""


def _speeds(run: Run, format: str, engines: Sequence[str], titles: Sequence[str]) -> str:
    rows = []
    for cell in dict.fromkeys(
        s.cell for s in run.samples if s.format == format and "floor" in s.figures
    ):
        rounds = run.counted(format, cell)
        found = [_of(rounds, engine) for engine in engines]
        shown = [
            f"{median(samples):.1f} ({share(samples):.0%})" if samples else "" for samples in found
        ]
        count = min(len(samples) for samples in found if samples)
        rows.append([cell, *shown, beside_best(rounds, more_is_better=True), str(count)])
    return _table(
        [f"{format}: tokens/s (share of floor)", *titles, "inferno / best peer", "rounds"], rows
    )


def median(samples: Sequence[Sample], key: str = "value") -> float:
    return statistics.median(sample.figures[key] for sample in samples)


def share(samples: Sequence[Sample]) -> float:
    """The median of floor over time, each at the machine's speed around that sample."""
    return statistics.median(
        sample.figures["floor"] / sample.figures["seconds"] for sample in samples
    )


def beside_best(rounds: Sequence[Round], *, more_is_better: bool, key: str = "value") -> str:
    """The ratio to the peer with the best median, as the median of the ratios within each round, so
    that the machine's moods cancel. Above 1 inferno is the better."""
    medians = {}
    for engine in dict.fromkeys(
        engine for samples in rounds for engine in samples if engine != OURS
    ):
        pairs = [
            (s[OURS].figures[key], s[engine].figures[key])
            for s in rounds
            if OURS in s and engine in s
        ]
        if pairs:
            ratio = statistics.median(
                ours / theirs if more_is_better else theirs / ours for ours, theirs in pairs
            )
            medians[engine] = (statistics.median(theirs for _, theirs in pairs), ratio)
    if not medians:
        return ""
    best = (max if more_is_better else min)(medians, key=lambda engine: medians[engine][0])
    return f"**{medians[best][1]:.2f}** ({best})"


def _starts(run: Run, format: str, engines: Sequence[str], titles: Sequence[str]) -> str:
    rows, first = [], [*run.rounds(format, FIRST).values()]
    for title, cell, key in (
        ("start to first token, s", COLD, "value"),
        ("peak memory at the first token, GB", COLD, "peak_gb"),
        ("peak memory after all cells, GB", PEAK, "value"),
    ):
        # A run in pieces has a peak of each piece: the highest counts.
        rounds = (
            [_highest(run.rounds(format, PEAK).values())]
            if cell == PEAK
            else run.counted(format, cell)
        )
        if any(rounds):
            # What starts very slowly is started once.
            found = [
                _of(rounds, engine) or _of(first if cell == COLD else [], engine)
                for engine in engines
            ]
            shown = [f"{median(samples, key):.2f}" if samples else "" for samples in found]
            rows.append([title, *shown, beside_best(rounds, more_is_better=False, key=key)])
    return _table([format, *titles, "best peer / inferno"], rows)


def _highest(rounds: Iterable[Round]) -> Round:
    samples = [sample for samples in rounds for sample in samples.values()]
    return {
        sample.engine: sample
        for sample in sorted(samples, key=lambda sample: sample.figures["value"])
    }


def _served(run: Run, format: str, engines: Sequence[str]) -> str:
    rows = []
    for cell in dict.fromkeys(
        s.cell for s in run.samples if s.format == format and s.cell.startswith("http")
    ):
        for engine in engines:
            if found := _of(run.counted(format, cell), engine):
                first, between, slow = (
                    f"{median(found, key) * 1000:.1f}" for key in ("ttft", "itl", "itl_99")
                )
                rows.append(
                    [
                        cell,
                        engine,
                        first,
                        between,
                        slow,
                        f"{median(found, 'tokens_per_second'):.1f}",
                        str(len(found)),
                    ]
                )
    return _table(
        [
            "",
            "engine",
            "first text, ms",
            "between texts, ms",
            "99 % of them, ms",
            "tokens/s, all",
            "rounds",
        ],
        rows,
    )


def _of(rounds: Sequence[Round], engine: str) -> list[Sample]:
    return [samples[engine] for samples in rounds if engine in samples]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
