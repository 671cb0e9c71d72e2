"""`inferno pull`: download a model now, to run it offline later."""

from __future__ import annotations

import rich_click as click

from inferno.cli.options import debug_option, declare, plugin_options, source_options


@declare
@click.argument("ref")
@click.option(
    "--no-mmproj", is_flag=True, help="Leave out the encoder of images beside a GGUF file."
)
@source_options
@plugin_options
@debug_option
def command(
    ref: str,
    no_mmproj: bool,
    revision: str | None,
    offline: bool | None,
    disable: tuple[str, ...],
    only: tuple[str, ...],
) -> None:
    """Download REF and print its local path."""
    from inferno.catalog import load_catalog
    from inferno.contracts import FetchOptions

    source = load_catalog(disable=disable, only=only).source_of(ref).item
    options = FetchOptions(
        revision=revision, offline=bool(offline), progress=True, encoder=not no_mmproj
    )
    click.echo(source.fetch(ref, options))
