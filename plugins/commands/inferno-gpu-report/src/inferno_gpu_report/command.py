"""`inferno gpu-report`: speed and errors of the installed plugins on a device."""

from __future__ import annotations

import re
from pathlib import Path

import rich_click as click
from attrs import evolve

from inferno.cli.options import debug_option, declare
from inferno.errors import OptionError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@declare
@click.option("--device", help="Device to measure: cuda, cuda:1, cpu. [default: the first GPU]")
@click.option("--budget", metavar="TIME", default="480s", help="Time for all sections.")
@click.option(
    "--section",
    "sections",
    multiple=True,
    metavar="NAME",
    help="Only this section; may be repeated.",
)
@click.option(
    "--output",
    metavar="FILE",
    default="gpu-report.json",
    help="JSON file of the report, rewritten after each section.",
)
@debug_option
def command(device: str | None, budget: str, sections: tuple[str, ...], output: str) -> None:
    """Measure speed and errors of a GPU with the installed plugins. Models have random weights."""
    from inferno_gpu_report.parent import make_report, plan_of
    from inferno_gpu_report.report import to_markdown

    plan = plan_of(device, seconds_of(budget), Path(output), sections)
    report = make_report(evolve(plan, say=lambda line: click.echo(line, err=True)))
    click.echo(to_markdown(report))


def seconds_of(text: str) -> float:
    """Parse a time such as 480s, 8m or 90. Raises OptionError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise OptionError(f"{text!r} is not a time", "Write seconds, minutes or hours: 480s, 8m.")
    return float(match[1]) * _UNITS[match[2]]
