"""`inferno unload`: unload a model of a running server."""

from __future__ import annotations

import rich_click as click

from inferno.cli.options import FiniteRange, debug_option, declare
from inferno.cli.running_server import call, server_options


@declare
@click.argument("name")
@server_options
@click.option(
    "--seconds",
    type=FiniteRange(0),
    default=30,
    help="Time that its requests may take to end before they are aborted.",
)
@debug_option
def command(name: str, url: str, api_key: str | None, seconds: float) -> None:
    """Unload the model NAME of a running server, and wait until its memory is free."""
    model = call(url, "/v1/models/unload", api_key, {"model": name, "seconds": seconds})
    click.echo(f"{model['name']}: {model['status']}")
