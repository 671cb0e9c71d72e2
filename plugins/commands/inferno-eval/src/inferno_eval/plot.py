"""A report as a chart: the divergence of each group, beside the whole model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inferno_eval import svg
from inferno_eval.measures import Divergence
from inferno_eval.report import Report

_HEAD, _ROW, _BAR = 108, 22, 14
_NAME, _PANEL, _VALUE, _GAP = 210, 250, 70, 24
"""Widths: a group's name, a panel, the figure beside a bar, and what separates panels."""

Row = tuple[str, Divergence]


def plot(report: Report) -> str:
    """Return an SVG chart with a bar for the model and for each group: the mean KL divergence, and
    the share of tokens whose most likely one changed. The report must have a reference."""
    assert report.divergence is not None, "a model alone has nothing to be compared with"
    rows: list[Row] = [("all modules", report.divergence)]
    rows += [(group.name, group.divergence) for group in report.groups if group.divergence]
    left = svg.MARGIN + _NAME
    body = [
        svg.words(svg.MARGIN, _HEAD + i * _ROW + 12, name, "quiet")
        for i, (name, _) in enumerate(rows)
    ]
    body += _panel(left, rows, "mean KL divergence, nats", lambda d: d.mean, "{:.4f}")
    share = "other top token, % of tokens"
    body += _panel(left + _PANEL + _GAP, rows, share, lambda d: 100 * (1 - d.top1), "{:.2f}")
    return svg.page(
        left + 2 * _PANEL + _GAP + svg.MARGIN,
        _HEAD + len(rows) * _ROW + svg.MARGIN,
        title=f"{report.model} against {report.reference}",
        about=f"{report.num_tokens} tokens of {report.text}; each group alone in the reference",
        alt="Mean KL divergence in nats: "
        + ", ".join(f"{name} {divergence.mean:.4f}" for name, divergence in rows),
        body=body,
    )


def _panel(
    x: int, rows: Sequence[Row], title: str, value: Callable[[Divergence], float], form: str
) -> Iterator[str]:
    yield svg.words(x, _HEAD - 14, title, "class")
    longest = max(value(divergence) for _, divergence in rows) or 1.0
    for i, (_, divergence) in enumerate(rows):
        y, figure = _HEAD + i * _ROW, value(divergence)
        length = max(2, round((_PANEL - _VALUE) * figure / longest))
        yield svg.bar(x, y, length, _BAR, 0 if i == 0 else 1)
        yield svg.words(x + length + 6, y + 12, form.format(figure))
