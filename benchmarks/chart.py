"""Draws each processor's chart, `docs/images/speed-NAME.svg`, from `benchmarks/results/NAME.json`.

    python benchmarks/chart.py
    python benchmarks/chart.py --run RUN --name NAME --title TITLE

The second form first writes the results, out of the samples of a run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from engines import LLAMA_BENCH
from report import HIT, OURS, median, of, ratio
from samples import Run, last_name, load
from weights import FORMATS

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"

Figures = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By class of formats, cell and engine: tokens per second."""

_HEAD, _MARGIN, _GAP, _PANEL = 108, 24, 28, 268
_BAR, _BETWEEN, _ROW = 15, 3, 24
"""Heights: a bar, the space below it, and a cell's heading."""
_VALUE = 52
"""Width kept for a figure beside its bar."""
_STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de; }
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f; }
  .title { font-size: 16px; font-weight: 600; }
  .class { font-size: 14px; font-weight: 600; }
  .quiet { fill: #57606a; }
  .ratio { font-weight: 600; text-anchor: end; }
  .engine-0 { fill: #d9480f; }
  .engine-1 { fill: #4f7cac; }
  .engine-2 { fill: #93a8b8; }
  .engine-3 { fill: #b9a9c9; }
  .engine-4 { fill: #a3b18a; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22; stroke: #30363d; }
    text { fill: #e6edf3; }
    .quiet { fill: #9ba5b0; }
    .engine-0 { fill: #ff8a4c; }
    .engine-1 { fill: #6a9bd1; }
    .engine-2 { fill: #71838f; }
    .engine-3 { fill: #85749a; }
    .engine-4 { fill: #748060; }
  }
"""


def results_of(run: Run, title: str) -> dict[str, Any]:
    """What a chart shows of a run: medians of the rounds that count."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    ratios: dict[str, dict[str, float]] = {}
    for sample in run.samples:
        if "floor" not in sample.figures or sample.cell.startswith(HIT):
            continue
        rounds = run.counted(sample.format, sample.cell)
        found = of(rounds, sample.engine)
        if found and sample.engine != LLAMA_BENCH:
            cells = figures.setdefault(sample.format, {})
            cells.setdefault(sample.cell, {})[sample.engine] = round(median(found), 1)
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
    width = 2 * _MARGIN + len(figures) * _PANEL + (len(figures) - 1) * _GAP
    height = _HEAD + bottom + _MARGIN
    about = (
        f"{results['model']}, {results['threads']} threads, {results['date']}; tokens per second, "
        "bars relative to the fastest engine"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title what">',
        f'<title id="title">{escape(results["title"])}</title>',
        f'<desc id="what">{escape(described(results))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        _text(_MARGIN, 34, results["title"], "title"),
        _text(_MARGIN, 54, about, "quiet"),
        *_legend(engines),
    ]
    for i, (name, cells) in enumerate(figures.items()):
        lines.append(f'<g transform="translate({_MARGIN + i * (_PANEL + _GAP)} {_HEAD})">')
        lines.append(_text(0, 12, name, "class"))
        for cell, top in tops.items():
            ratio = results["ratios"].get(name, {}).get(cell)
            lines += _cell(cell, top, cells.get(cell, {}), ratio, engines)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def _rows(figures: Figures) -> tuple[dict[str, int], int]:
    """Where each cell begins, the same in all classes, and where the last one ends."""
    tops, y = {}, 22
    for cell in dict.fromkeys(cell for cells in figures.values() for cell in cells):
        tops[cell] = y
        bars = max(len(cells.get(cell, {})) for cells in figures.values())
        y += _ROW + bars * (_BAR + _BETWEEN) + 6
    return tops, y


def _legend(engines: Sequence[str]) -> Iterator[str]:
    x = _MARGIN
    for i, engine in enumerate(engines):
        yield f'<rect class="engine-{i}" x="{x}" y="68" width="12" height="12" rx="2"/>'
        yield _text(x + 18, 79, engine)
        x += 18 + 7 * len(engine) + 24


def _cell(
    name: str,
    top: int,
    found: Mapping[str, float],
    ratio: float | None,
    engines: Sequence[str],
) -> Iterator[str]:
    yield _text(0, top + 16, name, "quiet")
    if ratio is not None:
        yield _text(_PANEL, top + 16, f"{ratio:.2f} ×", "ratio")
    y = top + _ROW
    if not found:
        yield _text(0, y + 12, "not measured", "quiet")
    for i, engine in enumerate(engines):
        if engine in found:
            length = max(2, round((_PANEL - _VALUE) * found[engine] / max(found.values())))
            yield (
                f'<rect class="engine-{i}" x="0" y="{y}" width="{length}" height="{_BAR}" rx="2"/>'
            )
            yield _text(length + 6, y + 12, _shown(found[engine]))
            y += _BAR + _BETWEEN


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _text(x: int, y: int, words: str, kind: str = "") -> str:
    drawn = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{drawn}>{escape(words)}</text>'


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
