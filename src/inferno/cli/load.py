"""`inferno load`: load a model of a running server."""

from __future__ import annotations

import rich_click as click

from inferno.cli.options import debug_option, declare
from inferno.cli.running_server import call, server_options


@declare
@click.argument("name")
@server_options
@debug_option
def command(name: str, url: str, api_key: str | None) -> None:
    """Load the model NAME of a running server, and wait until it is loaded."""
    from inferno.host import format_bytes

    model = call(url, "/v1/models/load", api_key, {"model": name})
    click.echo(f"{model['name']}: {model['status']}, {format_bytes(model['bytes'])}")
