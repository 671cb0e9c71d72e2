"""Options for structured output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from inferno.cli.options import together

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PANEL = "Structured output"

structured_options = together(
    [
        click.option(
            "--json-schema",
            type=_FILE,
            panel=_PANEL,
            help="File with a JSON schema that the answer matches.",
        ),
        click.option("--regex", panel=_PANEL, help="Regular expression that the answer matches."),
        click.option(
            "--choice", multiple=True, panel=_PANEL, help="A possible answer. May be repeated."
        ),
        click.option(
            "--grammar",
            type=_FILE,
            panel=_PANEL,
            help="File with a grammar that the answer matches: GBNF, or Lark.",
        ),
    ]
)


def take_structured(values: dict[str, Any]) -> dict[str, Any]:
    """Remove these options from `values`; return them as a sampling parameter, if any is given."""
    schema, grammar = values.pop("json_schema"), values.pop("grammar")
    given = {
        "json": schema and _read(schema),
        "regex": values.pop("regex"),
        "choice": list(values.pop("choice")) or None,
        "grammar": grammar and _read(grammar),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    return {"structured_outputs": settings} if settings else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not UTF-8 text.") from error
