"""Draws each processor's chart, `docs/images/speed-NAME.svg`, from `benchmarks/results/NAME.json`.

    python benchmarks/chart.py
    python benchmarks/chart.py --run RUN --name NAME --title TITLE

The second form first writes the results, out of the samples of a run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines import LLAMA_BENCH
from report import HIT, OURS, median, of, ratio
from samples import Run, last_name, load
from weights import FORMATS

import inferno_eval.svg as svg

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"

Figures = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By class of formats, cell and engine: tokens per second."""

_HEAD, _GAP, _PANEL, _ALONE = 108, 28, 268, 580
"""The last two are widths of a class: beside others, and alone, below a title of one line."""
_BAR, _BETWEEN, _ROW = 15, 3, 24
"""Heights: a bar, the space below it, and a cell's heading."""
_VALUE = 52
"""Width kept for a figure beside its bar."""


def results_of(run: Run, title: str) -> dict[str, Any]:
    """What a chart shows of a run: medians of the rounds that count."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    ratios: dict[str, dict[str, float]] = {}
    for sample in run.samples:
        if "floor" not in sample.figures or sample.cell.startswith(HIT):
            continue
        rounds = run.counted(sample.format, sample.cell)
        series = of(rounds, sample.engine)
        if series and sample.engine != LLAMA_BENCH:
            cells = figures.setdefault(sample.format, {})
            cells.setdefault(sample.cell, {})[sample.engine] = round(median(series), 1)
        if beside := ratio(rounds, more_is_better=True):
            ratios.setdefault(sample.format, {})[sample.cell] = round(beside[0], 2)
    dates = sorted(sample.date for sample in run.samples)
    return {
        "title": title,
        "processor": run.machine.processor if run.machine else "",
        "model": run.model,
        "threads": run.samples[-1].threads,
        "date": dates[-1].partition(" ")[0],
        "figures": {name: figures[name] for name in FORMATS if name in figures},
        "ratios": {name: ratios[name] for name in FORMATS if name in ratios},
    }


def described(results: Mapping[str, Any]) -> str:
    """The chart in words, for those that do not see it: the speed beside the best peer's."""
    parts = [
        f"{name}: {', '.join(f'{cell} {ratio:.2f}' for cell, ratio in ratios.items())}"
        for name, ratios in results["ratios"].items()
    ]
    return f"Speed of inferno over the best peer's, {results['title']}. {'. '.join(parts)}."


def draw(results: Mapping[str, Any]) -> str:
    """The chart as SVG, readable on a light and on a dark page."""
    figures: Figures = results["figures"]
    engines = list(dict.fromkeys(e for c in figures.values() for row in c.values() for e in row))
    engines.sort(key=lambda engine: engine != OURS)
    tops, bottom = _rows(figures)
    panel = _PANEL if len(figures) > 1 else _ALONE
    width = 2 * svg.MARGIN + len(figures) * panel + (len(figures) - 1) * _GAP
    height = _HEAD + bottom + svg.MARGIN
    about = (
        f"{results['model']}, {results['threads']} threads, {results['date']}; tokens per second, "
        "bars relative to the fastest engine"
    )
    body = [*legend(engines)]
    for i, (name, cells) in enumerate(figures.items()):
        body.append(f'<g transform="translate({svg.MARGIN + i * (panel + _GAP)} {_HEAD})">')
        body.append(svg.words(0, 12, name, "class"))
        for cell, top in tops.items():
            ratio = results["ratios"].get(name, {}).get(cell)
            body += _cell(cell, top, cells.get(cell, {}), ratio, engines, panel)
        body.append("</g>")
    return svg.page(
        width,
        height,
        title=results["title"],
        about=about,
        alt=described(results),
        body=body,
    )


def legend(names: Sequence[str]) -> Iterator[str]:
    """A row with the color and the name of each series."""
    x = svg.MARGIN
    for i, name in enumerate(names):
        yield svg.bar(x, 68, 12, 12, i)
        yield svg.words(x + 18, 79, name)
        x += 18 + 7 * len(name) + 24


def _rows(figures: Figures) -> tuple[dict[str, int], int]:
    """Where each cell begins, the same in all classes, and where the last one ends."""
    tops, y = {}, 22
    for cell in dict.fromkeys(cell for cells in figures.values() for cell in cells):
        tops[cell] = y
        bars = max(len(cells.get(cell, {})) for cells in figures.values())
        y += _ROW + bars * (_BAR + _BETWEEN) + 6
    return tops, y


def _cell(
    name: str,
    top: int,
    found: Mapping[str, float],
    ratio: float | None,
    engines: Sequence[str],
    width: int,
) -> Iterator[str]:
    yield svg.words(0, top + 16, name, "quiet")
    if ratio is not None:
        yield svg.words(width, top + 16, f"{ratio:.2f} ×", "ratio")
    y = top + _ROW
    if not found:
        yield svg.words(0, y + 12, "not measured", "quiet")
    for i, engine in enumerate(engines):
        if engine in found:
            length = max(2, round((width - _VALUE) * found[engine] / max(found.values())))
            yield svg.bar(0, y, length, _BAR, i)
            yield svg.words(length + 6, y + 12, _shown(found[engine]))
            y += _BAR + _BETWEEN


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=Path, help="the file of run.py's samples")
    parser.add_argument("--run", help="of these samples; the last one, unless it is named")
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--name", help="of the results that are written")
    parser.add_argument("--title", help="of the chart: the processor in words")
    options = parser.parse_args()
    if options.samples:
        if not (options.name and options.title):
            parser.error("--samples needs --name and --title")
        run = load(options.samples, options.run or last_name(options.samples) or "", options.model)
        if not run.samples:
            parser.error(f"{options.samples} has no samples of this run")
        text = json.dumps(results_of(run, options.title), indent=1, ensure_ascii=False)
        (RESULTS / f"{options.name}.json").write_text(text + "\n")
    for path in sorted(RESULTS.glob("*.json")):
        (IMAGES / f"speed-{path.stem}.svg").write_text(draw(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
