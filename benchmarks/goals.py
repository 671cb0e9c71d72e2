"""Compares the figures of a run with the goals, which are the same for every processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen
from cells import COLD, HOST, LONG, PEAK
from report import LLAMA, OURS, highest_peaks, median, of, ratio, share, table
from samples import Run

MOE = "qwen3-moe-330m"
HOST_LIMIT_MS = 1.0
FIRST_RATIO = 3.0
"""Time to the first token after a prefix hit: llama.cpp's over ours."""
MOE_RATIO = 1.5
LONG_SHARE = 0.8
"""Of the bandwidth that reads weights and cache, after long prompts."""
_HIT_STEPS = 1.5
"""Time to the first token after a full prefix hit, in decode steps after the same prompt."""


@frozen
class Goal:
    """What is wanted of a cell in a class of formats: one of the two is enough."""

    ratio: float
    """To the best peer."""
    share: float | None = None
    """Of the floor."""


GOALS: Mapping[str, Mapping[str, Goal]] = {
    "decode": {
        "bf16": Goal(1.5, 0.95),
        "q8_0": Goal(1.6, 0.85),
        "q4_k_m": Goal(1.8, 0.80),
    },
    "prefill-512": {"bf16": Goal(1.3), "q8_0": Goal(1.5), "q4_k_m": Goal(2.5)},
    "prefill-2048": {"bf16": Goal(1.3), "q8_0": Goal(1.5), "q4_k_m": Goal(2.5)},
    "batch-16": {"bf16": Goal(1.6), "q8_0": Goal(1.8), "q4_k_m": Goal(2.7)},
    "batch-64": {"bf16": Goal(1.4), "q8_0": Goal(1.8), "q4_k_m": Goal(2.5)},
}


@frozen
class Standing:
    """One goal and what was measured."""

    cell: str
    format: str
    measured: str
    wanted: str
    met: bool


def standings(run: Run) -> Iterator[Standing]:
    """Of the goals that the run has figures for."""
    for format in dict.fromkeys(sample.format for sample in run.samples):
        for find in (_speeds, _long, _hits, _starts):
            yield from find(run, format)
    costs = [sample for samples in run.rounds(HOST, HOST).values() for sample in samples.values()]
    if costs:
        cost = median(costs)
        yield Standing(
            HOST, "", f"{cost:.2f} ms", f"at most {HOST_LIMIT_MS} ms", cost <= HOST_LIMIT_MS
        )


def _speeds(run: Run, format: str) -> Iterator[Standing]:
    for cell, goals in GOALS.items():
        rounds = run.counted(format, cell)
        ours, lead = of(rounds, OURS), ratio(rounds, more_is_better=True)
        goal = goals.get(format)
        if run.model == MOE:
            lead = ratio(rounds, more_is_better=True, peer=LLAMA)
            goal = None if cell.startswith("batch") else Goal(MOE_RATIO)
        if goal is None or not ours or lead is None:
            continue
        met, measured, wanted = lead[0] >= goal.ratio, f"{lead[0]:.2f} ({lead[1]})", ""
        if goal.share is not None:
            reached = share(ours)
            met |= reached >= goal.share
            measured += f", {reached:.0%} of the floor"
            wanted = f" or {goal.share:.0%}"
        yield Standing(cell, format, measured, f"{goal.ratio}{wanted}", met)


def _long(run: Run, format: str) -> Iterator[Standing]:
    for cell in LONG:
        if ours := of(run.counted(format, cell), OURS):
            reached = share(ours)
            measured = f"{reached:.0%} of the floor"
            yield Standing(cell, format, measured, f"{LONG_SHARE:.0%}", reached >= LONG_SHARE)


def _hits(run: Run, format: str) -> Iterator[Standing]:
    rounds = run.counted(format, "prefix-hit")
    if lead := ratio(rounds, more_is_better=False, peer=LLAMA):
        met = lead[0] >= FIRST_RATIO
        yield Standing("prefix-hit", format, f"{lead[0]:.2f} ({LLAMA})", f"{FIRST_RATIO}", met)
    full = of(run.counted(format, "prefix-full"), OURS)
    after = of(run.counted(format, "decode-2k"), OURS)
    if full and after:
        steps = median(full) * median(after)
        yield Standing(
            "prefix-full",
            format,
            f"{steps:.1f} steps",
            f"{_HIT_STEPS}",
            steps <= _HIT_STEPS,
        )


def _starts(run: Run, format: str) -> Iterator[Standing]:
    rounds = run.counted(format, COLD)
    peaks = [highest_peaks(run, format)]
    peer = LLAMA if run.model == MOE else ""
    for name, samples, key, other in (
        (COLD, rounds, "value", LLAMA),
        ("peak memory at the first token", rounds, "peak_gb", peer),
        (f"{PEAK} memory after all cells", peaks, "value", peer),
    ):
        if lead := ratio(samples, more_is_better=False, key=key, peer=other):
            yield Standing(name, format, f"{lead[0]:.2f} ({lead[1]})", "1.0", lead[0] >= 1.0)


def standing(run: Run) -> str:
    """The table."""
    rows = [
        [entry.cell, entry.format, entry.measured, entry.wanted, "yes" if entry.met else "**no**"]
        for entry in standings(run)
    ]
    return table(["goal", "class", "measured", "wanted", "met"], rows)
