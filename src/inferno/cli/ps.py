"""`inferno ps`: the models of a running server."""

from __future__ import annotations

from typing import Any

import rich_click as click

from inferno.cli.options import debug_option, declare
from inferno.cli.running_server import call, server_options


@declare
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print what the server answers.")
@debug_option
def command(url: str, api_key: str | None, as_json: bool) -> None:
    """Show the models of a running server: what each does, its memory and its requests."""
    answer = call(url, "/v1/models/status", api_key)
    if as_json:
        import json

        click.echo(json.dumps(answer, indent=2))
        return
    rows: list[tuple[str, ...]] = [("NAME", "STATUS", "MEMORY", "DEVICE", "REQUESTS", "MODEL")]
    rows += [_row(model) for model in answer["models"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    for model in answer["models"]:
        if model["error"]:
            click.echo(f"{model['name']}: {model['error']}", err=True)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    from inferno.host import format_bytes

    status = model["status"] + (", pinned" if model["pinned"] else "")
    if model["idle_seconds"] is not None and model["unload_after"] is not None:
        left = max(0, round(model["unload_after"] - model["idle_seconds"]))
        status += "" if model["pinned"] else f", unloads in {left} s"
    return (
        ", ".join((model["name"], *model["aliases"])),
        status,
        format_bytes(model["bytes"]) if model["bytes"] else "-",
        model["device"] or "-",
        str(model["requests"] + model["waiting"]),
        model["ref"],
    )
