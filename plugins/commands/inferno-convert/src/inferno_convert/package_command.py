"""`inferno package`: write a model as a Python package, to be run as `package:NAME`."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from inferno.cli.options import debug_option, declare, plugin_options, source_options
from inferno_convert.convert_command import progress_bar


@declare
@click.argument("ref")
@click.option("--name", required=True, help="The package's name: bear-7b-q4.")
@click.option("--version", default="1.0", help="The package's version.")
@click.option(
    "--license",
    metavar="SPDX",
    help="SPDX expression of the licence: Apache-2.0. [default: as the model says]",
)
@click.option(
    "--license-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Text of the licence. [default: those in the model's folder]",
)
@click.option("--out", metavar="DIR", default=".", help="Folder in which to write the wheel.")
@source_options
@plugin_options
@debug_option
def command(
    ref: str,
    name: str,
    version: str,
    license: str | None,
    license_file: str | None,
    out: str,
    revision: str | None,
    offline: bool | None,
    disable: tuple[str, ...],
    only: tuple[str, ...],
) -> None:
    """Write REF as a Python package: a wheel with the model's files, licence, card and hashes."""
    from inferno.catalog import load_catalog
    from inferno.contracts import FetchOptions
    from inferno.host import format_bytes
    from inferno_convert.package import PackageOptions, package

    options = PackageOptions(
        name=name,
        version=version,
        license=license,
        license_file=None if license_file is None else Path(license_file),
    )
    with progress_bar() as progress:
        made = package(
            ref,
            options,
            Path(out),
            load_catalog(disable=disable, only=only),
            FetchOptions(revision=revision, offline=bool(offline), progress=True),
            progress,
        )
    click.echo(f"Wrote {made.path}: {format_bytes(made.nbytes)}, {made.license}.")
    for note in made.notes:
        click.echo(f"  {note}")
    click.echo(f"  install it: pip install {made.path}; run it: inferno serve package:{made.name}")
