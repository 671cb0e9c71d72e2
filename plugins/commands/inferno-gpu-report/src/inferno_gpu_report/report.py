"""What a report holds, as JSON and as a Markdown table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import define, field, frozen

Status = Literal["waiting", "done", "stopped", "failed", "skipped", "not installed"]


@frozen
class Figure:
    """One measured value."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    """The best that the machine allows, in the same unit, by its measured bandwidth or rate; for an
    error, the tolerance. None: the value is itself a limit of the machine, or has none."""
    lower: bool = False
    """Whether less is better: times and errors."""
    detail: str = ""

    @property
    def share(self) -> float | None:
        """Share of the floor that is reached: 1 at best. Of an error, its share of the
        tolerance."""
        if self.floor is None or not self.floor:
            return None
        if self.lower and self.unit != ERROR:
            return self.floor / self.value if self.value else None
        return self.value / self.floor


ERROR = "error"
"""Unit of errors: shares of the largest value."""


@frozen(kw_only=True)
class Section:
    """A part of the report, and the function that measures it."""

    name: str
    title: str
    run: str
    """`package.module:function`, called with a `Job` in a new process."""
    weight: float
    """Its part of the budget: unused time goes to the sections after it."""
    tool: str = ""
    """Tool of compute-sanitizer to run it under: memcheck, racecheck."""


@define
class SectionResult:
    """What a section found so far."""

    name: str
    title: str
    status: Status = "waiting"
    seconds: float = 0.0
    budget_seconds: float = 0.0
    reason: str = ""
    """Why it is not done."""
    facts: dict[str, str] = field(factory=dict)
    notes: list[str] = field(factory=list)
    figures: list[Figure] = field(factory=list)

    def read(self, line: str) -> None:
        """Take one line that the section's process wrote; a torn one is ignored."""
        try:
            [(kind, value)] = json.loads(line).items()
        except ValueError:
            return
        if kind == "figure":
            self.figures.append(Figure(**value))
        elif kind == "fact":
            self.facts[value[0]] = value[1]
        elif kind == "note":
            self.notes.append(value)
        elif kind == "status":
            self.status, self.reason = value


@define
class GpuReport:
    """All sections of one run."""

    device: str
    cpu_run: bool
    """Whether tiny sizes were computed on a CPU: its figures say nothing about speed."""
    budget_seconds: float
    started: str
    """UTC."""
    sections: list[SectionResult]
    version: int = 1

    def section(self, name: str) -> SectionResult:
        return next(each for each in self.sections if each.name == name)

    def figure(self, section: str, name: str) -> float | None:
        """Return the value of a figure, or None if it was not measured."""
        values = [each.value for each in self.section(section).figures if each.name == name]
        return values[-1] if values else None


def to_json(report: GpuReport) -> str:
    """Return the report as an indented JSON document; each figure has its share of the floor."""

    def plain(section: SectionResult) -> dict[str, Any]:
        figures = [{**attrs.asdict(each), "share": each.share} for each in section.figures]
        return {**attrs.asdict(section), "figures": figures}

    document = {**attrs.asdict(report), "sections": [plain(each) for each in report.sections]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def write(report: GpuReport, path: Path) -> None:
    """Replace the file at once, so that a reader, or a killed run, finds a whole document."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(to_json(report), encoding="utf-8")
    os.replace(part, path)


def to_markdown(report: GpuReport) -> str:
    """Return the report as Markdown: a table for each section."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: GpuReport) -> Iterator[str]:
    yield f"### {report.device}, {report.started}"
    yield ""
    if report.cpu_run:
        yield (
            "**A run on a CPU with tiny sizes: it shows that every section runs, and nothing about "
            "speed.**"
        )
        yield ""
    for section in report.sections:
        yield f"#### {section.title}"
        yield ""
        if section.status != "done":
            yield f"{section.status}{': ' * bool(section.reason)}{section.reason}"
            yield ""
        if section.facts:
            yield "; ".join(f"{name} {value}" for name, value in section.facts.items())
            yield ""
        if section.figures:
            yield "| figure | value | unit | floor | share | |"
            yield "| --- | --- | --- | --- | --- | --- |"
            yield from (_row(figure) for figure in section.figures)
            yield ""
        if section.notes:
            yield from (f"- {note}" for note in section.notes)
            yield ""


def _row(figure: Figure) -> str:
    share = "" if figure.share is None else f"{100 * figure.share:.3g} %"
    floor = "" if figure.floor is None else _number(figure.floor)
    cells = (figure.name, _number(figure.value), figure.unit, floor, share, figure.detail)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
