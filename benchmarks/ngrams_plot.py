"""The picture of `ngrams.py`: speed with and without n-gram drafts, by what the model is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chart import legend

import inferno_eval.svg as svg

_HEAD, _WIDTH, _VALUE = 108, 620, 52
_BAR, _BETWEEN, _TEXT = 15, 3, 24
"""Heights: a bar, the space below it, and a text's heading."""


def draw(results: Mapping[str, Any]) -> str:
    """The chart as SVG, readable on a light and on a dark page. Bars are tokens per second of
    processor time."""
    rows, top = results["rows"], max(1000 / row["ngram_ms"] for row in results["rows"])
    body, y = [*legend(["plain", "with n-gram drafts"])], _HEAD
    for row in rows:
        body += _text(row, y, (_WIDTH - _VALUE) / max(top, 1000 / row["plain_ms"]))
        y += _TEXT + 2 * (_BAR + _BETWEEN) + 10
    drafted = "; ".join(
        f"{row['name']}: {row['ratio']:.2f} times as fast, {accepted(row):.0%} of drafts accepted"
        for row in rows
    )
    return svg.page(
        2 * svg.MARGIN + _WIDTH,
        y + svg.MARGIN // 2,
        title="N-gram drafts, by what the model is asked",
        about=f"tokens per second, greedy, one thread of a {results['processor']}; "
        f"{results['package']}",
        alt=f"Speed with n-gram drafts over the speed without. {drafted}.",
        body=body,
    )


def accepted(row: Mapping[str, Any]) -> float:
    """The share of a row's drafts that were accepted."""
    return row["accepted"] / row["drafts"] if row["drafts"] else 0.0


def _text(row: Mapping[str, Any], top: int, scale: float) -> Iterator[str]:
    left = svg.MARGIN
    label = f"{row['name']}: {accepted(row):.0%} of {row['drafts']} drafts accepted"
    yield svg.words(left, top + 14, label, "quiet")
    yield svg.words(left + _WIDTH, top + 14, f"{row['ratio']:.2f} ×", "ratio")
    y = top + _TEXT
    for series, milliseconds in enumerate((row["plain_ms"], row["ngram_ms"])):
        length = round(scale * 1000 / milliseconds)
        yield svg.bar(left, y, length, _BAR, 1 - series)
        yield svg.words(left + length + 6, y + 12, f"{1000 / milliseconds:.0f}")
        y += _BAR + _BETWEEN
