"""Samples to Markdown tables: medians, ratios within a round, shares of what the machine could
do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cells import COLD, FIRST, PEAK
from engines import LLAMA_BENCH
from samples import START, Round, Run, Sample

OURS, LLAMA = "inferno", "llama-cpp-python"
HIT = "prefix-"
"""Cells whose figure is the time to the first token begin so."""


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
    stolen = [sample.stolen for sample in run.samples]
    summary = (
        f"{run.model}, {run.samples[-1].threads} threads, {when}.{engines_used} Memory read "
        f"at {gigabytes[0]:.0f} to "
        f"{gigabytes[-1]:.0f} GB/s (median {statistics.median(gigabytes):.0f}), matrix "
        f"products {gigaflops:.0f} GFLOP/s. The host took {statistics.median(stolen):.2f} cores "
        f"(median; at most {max(stolen):.2f})."
    )
    return "\n\n".join(part for part in (summary, _machine(run)) if part)


def _machine(run: Run) -> str:
    """Processor, instructions, and what the engines chose of them."""
    if (machine := run.machine) is None:
        return ""
    levels = {s.engine: s.level for s in run.samples if s.level and s.engine != LLAMA_BENCH}
    parts = [
        f"{machine.processor}, {machine.cores} cores, {machine.gigabytes:.0f} GB, "
        f"{machine.system}. Instructions: {', '.join(machine.features) or 'no special ones'}."
    ]
    if levels:
        parts.append(
            f"Chosen: {'; '.join(f'{engine} {level}' for engine, level in levels.items())}."
        )
    if machine.peaks:
        peaks = ", ".join(f"{name} {value:.0f}" for name, value in machine.peaks.items())
        parts.append(f"Peak of an instruction, 10^9 operations per second: {peaks}.")
    return " ".join(parts)


def _parts(run: Run, format: str) -> list[str]:
    samples = [sample for sample in run.samples if sample.format == format]
    variants = {sample.engine: sample.variant for sample in samples}
    engines = sorted(variants, key=lambda engine: engine != OURS)
    titles = [f"{engine} {variants[engine]}" for engine in engines]
    note = _left_out(run, format)
    tables = (
        _speeds(run, format, engines, titles),
        _own_tool(run, format),
        _hits(run, format, engines, titles),
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
        s.cell
        for s in run.samples
        if s.format == format and "floor" in s.figures and not s.cell.startswith(HIT)
    ):
        rounds = run.counted(format, cell)
        series = [of(rounds, engine) for engine in engines]
        shown = [
            f"{median(samples):.1f} ({share(samples):.0%})" if samples else "" for samples in series
        ]
        count = min(len(samples) for samples in series if samples)
        rows.append([cell, *shown, beside_best(rounds, more_is_better=True), str(count)])
    return table(
        [f"{format}: tokens/s (share of floor)", *titles, "inferno / best peer", "rounds"], rows
    )


def _own_tool(run: Run, format: str) -> str:
    """How far llama.cpp's own `llama-bench` is from the figures above."""
    ratios = []
    for cell in dict.fromkeys(s.cell for s in run.samples if s.format == format):
        pairs = [
            s[LLAMA_BENCH].figures["value"] / s[LLAMA].figures["value"]
            for s in run.counted(format, cell)
            if LLAMA_BENCH in s and LLAMA in s
        ]
        if pairs:
            ratios.append(f"{cell} {statistics.median(pairs):.2f}")
    return f"{LLAMA_BENCH} / {LLAMA}: {', '.join(ratios)}." if ratios else ""


def _hits(run: Run, format: str, engines: Sequence[str], titles: Sequence[str]) -> str:
    rows = []
    for cell in dict.fromkeys(
        s.cell for s in run.samples if s.format == format and s.cell.startswith(HIT)
    ):
        rounds = run.counted(format, cell)
        series = [of(rounds, engine) for engine in engines]
        shown = [f"{median(samples):.3f}" if samples else "" for samples in series]
        count = min(len(samples) for samples in series if samples)
        rows.append([cell, *shown, beside_best(rounds, more_is_better=False), str(count)])
    head = f"{format}: seconds to the first token"
    return table([head, *titles, "best peer / inferno", "rounds"], rows)


def median(samples: Sequence[Sample], key: str = "value") -> float:
    return statistics.median(sample.figures[key] for sample in samples)


def share(samples: Sequence[Sample]) -> float:
    """The median of floor over time, each at the machine's speed around that sample."""
    return statistics.median(
        sample.figures["floor"] / sample.figures["seconds"] for sample in samples
    )


def beside_best(rounds: Sequence[Round], *, more_is_better: bool, key: str = "value") -> str:
    """`ratio`, as it is shown."""
    lead = ratio(rounds, more_is_better=more_is_better, key=key)
    return f"**{lead[0]:.2f}** ({lead[1]})" if lead else ""


def ratio(
    rounds: Sequence[Round], *, more_is_better: bool, key: str = "value", peer: str = ""
) -> tuple[float, str] | None:
    """The ratio to the peer with the best median, and its name. It is the median of the ratios
    within each round, so that the machine's moods cancel. Above 1 inferno is the better.
    `llama-bench` draws no tokens and does not count as a peer. With `peer`, the ratio to that one.
    None without a round that has both."""
    medians = {}
    for engine in dict.fromkeys(
        engine
        for samples in rounds
        for engine in samples
        if engine not in (OURS, LLAMA_BENCH) and engine.startswith(peer)
    ):
        pairs = [
            (s[OURS].figures[key], s[engine].figures[key])
            for s in rounds
            if OURS in s and engine in s
        ]
        if pairs:
            middle = statistics.median(
                ours / theirs if more_is_better else theirs / ours for ours, theirs in pairs
            )
            medians[engine] = (statistics.median(theirs for _, theirs in pairs), middle)
    if not medians:
        return None
    best = (max if more_is_better else min)(medians, key=lambda engine: medians[engine][0])
    return medians[best][1], best


def _starts(run: Run, format: str, engines: Sequence[str], titles: Sequence[str]) -> str:
    rows, first = [], [*run.rounds(format, FIRST).values()]
    for title, cell, key in (
        ("start to first token, s", COLD, "value"),
        ("peak memory at the first token, GB", COLD, "peak_gb"),
        ("peak memory after all cells, GB", PEAK, "value"),
    ):
        # A run in pieces has a peak of each piece: the highest counts.
        rounds = [highest_peaks(run, format)] if cell == PEAK else run.counted(format, cell)
        if any(rounds):
            # What starts very slowly is started once.
            series = [
                of(rounds, engine) or of(first if cell == COLD else [], engine)
                for engine in engines
            ]
            shown = [f"{median(samples, key):.2f}" if samples else "" for samples in series]
            rows.append([title, *shown, beside_best(rounds, more_is_better=False, key=key)])
    return table([format, *titles, "best peer / inferno"], rows)


def highest_peaks(run: Run, format: str) -> Round:
    """Of each engine, in all pieces of the run."""
    rounds = run.rounds(format, PEAK).values()
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
            if series := of(run.counted(format, cell), engine):
                first, between, slow = (
                    f"{median(series, key) * 1000:.1f}" for key in ("ttft", "itl", "itl_99")
                )
                rows.append(
                    [
                        cell,
                        engine,
                        first,
                        between,
                        slow,
                        f"{median(series, 'tokens_per_second'):.1f}",
                        str(len(series)),
                    ]
                )
    return table(
        [
            format,
            "engine",
            "first chunk, ms",
            "between chunks, ms",
            "99 % of them, ms",
            "tokens/s, all",
            "rounds",
        ],
        rows,
    )


def of(rounds: Sequence[Round], engine: str) -> list[Sample]:
    return [samples[engine] for samples in rounds if engine in samples]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
