"""The picture of `quality.py`: a row for each quantization, with its divergence from float32 on a
logarithmic scale and its size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quality_rows import Row

import inferno_eval.svg as svg

_HEAD, _ROW, _DOT = 96, 20, 5
_NAME, _BITS, _SCALE, _VALUE = 230, 56, 420, 60
"""Widths: a row's name, its bits, the scale, and the figure at its end."""
_SERIES = {"file": 0, "gguf": 1, "folder": 2, "loaded": 4}
_LEGEND = {
    "file": "the file as it is, Q4_1",
    "gguf": "GGUF, made from its values",
    "folder": "safetensors, made from its values",
    "loaded": "quantized while loading",
}


def draw(about: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """The chart as SVG, the rows with the least divergence first."""
    shown = sorted(rows, key=lambda row: row.kl)
    low = math.floor(math.log10(shown[0].kl))
    high = math.log10(shown[-1].kl)
    left = svg.MARGIN + _NAME + _BITS
    top = _HEAD + 22
    bottom = top + len(shown) * _ROW

    def at(kl: float) -> int:
        return left + round(_SCALE * (math.log10(kl) - low) / (high - low))

    kinds = [kind for kind in _SERIES if any(row.kind == kind for row in shown)]
    body = [*_legend(kinds)]
    for power in range(low, math.floor(high) + 1):
        body.append(svg.rule(at(10.0**power), top, bottom - top))
        body.append(svg.words(at(10.0**power) - 12, top - 6, f"{10.0**power:g}", "quiet"))
    for i, row in enumerate(shown):
        y, x = top + 8 + i * _ROW, at(row.kl)
        body.append(svg.words(svg.MARGIN, y + 4, named(row)))
        body.append(svg.words(svg.MARGIN + _NAME, y + 4, f"{row.bits:.1f} bits", "quiet"))
        body.append(svg.dot(x, y, _DOT, _SERIES[row.kind]))
        body.append(svg.words(x + 10, y + 4, f"{row.kl:.{2 if row.kl > 0.1 else 4}f}", "quiet"))
    return svg.page(
        left + _SCALE + _VALUE + svg.MARGIN,
        bottom + svg.MARGIN,
        title="What quantization costs SmolLM2-135M",
        about="mean KL divergence from float32 in nats per token, logarithmic; "
        f"{about['tokens']} tokens, {about['package']}",
        alt="Mean KL divergence from float32, in nats per token: "
        + ", ".join(f"{named(row)} {row.kl:.4f}" for row in shown),
        body=body,
    )


def named(row: Row) -> str:
    """The row's name without marks of Markdown and without options that its color tells."""
    return row.name.replace("`", "").replace("--to ", "").replace("--", "")


def _legend(kinds: Iterable[str]) -> Iterator[str]:
    x = svg.MARGIN
    for kind in kinds:
        yield svg.dot(x + 6, 74, _DOT, _SERIES[kind])
        yield svg.words(x + 18, 79, _LEGEND[kind])
        x += 18 + 7 * len(_LEGEND[kind]) + 20
