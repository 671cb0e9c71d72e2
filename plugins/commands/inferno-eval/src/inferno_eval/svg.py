"""Bar charts as SVG, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

_SERIES = (
    ("#d9480f", "#ff8a4c"),
    ("#4f7cac", "#6a9bd1"),
    ("#93a8b8", "#71838f"),
    ("#b9a9c9", "#85749a"),
    ("#a3b18a", "#748060"),
)
"""Colors of the series, on light and on dark pages."""
_STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de; }
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f; }
  .title { font-size: 16px; font-weight: 600; }
  .class { font-size: 14px; font-weight: 600; }
  .quiet { fill: #57606a; }
  .rule { fill: #d0d7de; }
  .ratio { font-weight: 600; text-anchor: end; }
"""
_DARK = """
    .ground { fill: #161b22; stroke: #30363d; }
    text { fill: #e6edf3; }
    .quiet { fill: #9ba5b0; }
    .rule { fill: #30363d; }
"""


def page(width: int, height: int, *, title: str, about: str, alt: str, body: Iterable[str]) -> str:
    """Return a document: the title and a line about it at the top, and the elements of `body`
    below, from 68 on. `alt` is the text alternative for screen readers."""
    light = "\n".join(f"  .series-{i} {{ fill: {color}; }}" for i, (color, _) in _numbered())
    dark = "\n".join(f"    .series-{i} {{ fill: {color}; }}" for i, (_, color) in _numbered())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title what">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="what">{escape(alt)}</desc>',
        f"<style>{_STYLE}{light}\n  @media (prefers-color-scheme: dark) {{{_DARK}{dark}\n  }}\n"
        "</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        words(MARGIN, 34, title, "title"),
        words(MARGIN, 54, about, "quiet"),
        *body,
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


MARGIN = 24
"""Left of the title, and of everything that is aligned with it."""


def words(x: int, y: int, text: str, kind: str = "") -> str:
    """Return a line of text on the baseline y. Kinds are `title`, `class`, `quiet`, and `ratio`,
    which ends at x."""
    drawn = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{drawn}>{escape(text)}</text>'


def bar(x: int, y: int, length: int, height: int, series: int) -> str:
    """Return a horizontal bar in the color of a series."""
    return (
        f'<rect class="series-{series}" x="{x}" y="{y}" width="{length}" height="{height}" rx="2"/>'
    )


def dot(x: int, y: int, radius: int, series: int) -> str:
    """Return a dot around a point, in the color of a series."""
    return f'<circle class="series-{series}" cx="{x}" cy="{y}" r="{radius}"/>'


def rule(x: int, y: int, height: int) -> str:
    """Return a vertical line of a scale."""
    return f'<rect class="rule" x="{x}" y="{y}" width="1" height="{height}"/>'


def _numbered() -> Iterator[tuple[int, tuple[str, str]]]:
    return enumerate(_SERIES)
