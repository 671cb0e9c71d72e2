"""`inferno convert`: write a model in another format or quantization scheme."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from inferno.cli.options import DTYPES, debug_option, declare, plugin_options, source_options

if TYPE_CHECKING:
    from inferno.catalog import Catalog
    from inferno_convert.writing import Progress


@declare
@click.argument("ref", required=False)
@click.option("--to", metavar="NAME", help="Format or scheme to write; --list shows the names.")
@click.option(
    "--output", "-o", metavar="PATH", help="The file or folder to write; it must not exist."
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="REF",
    help="Merge this low-rank adapter into the model; may be repeated.",
)
@click.option(
    "--calibrate",
    metavar="FILE",
    help="Text file for the activations that GPTQ, AWQ and compressed-tensors use. "
    "[default: round to nearest]",
)
@click.option(
    "--imatrix",
    metavar="FILE",
    help="Importance matrix that weights the errors of GGUF's quantized types.",
)
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Type of tensors that stay dense.")
@click.option("--split-size", metavar="SIZE", help="Maximum size of a file: 2GB.")
@click.option("--group-size", type=int, help="Columns that share a scale; -1: a whole row.")
@click.option(
    "--act-order", is_flag=True, help="GPTQ: begin with the columns of the largest activations."
)
@click.option(
    "--damping", type=click.FloatRange(0, 1, min_open=True), help="GPTQ: damping of the Hessian."
)
@click.option(
    "--requantize",
    is_flag=True,
    help="Round matrices that are quantized already a second time: the errors add up.",
)
@click.option("--force", is_flag=True, help="Replace an earlier result.")
@click.option("--list", "listed", is_flag=True, help="List the names for --to, and stop.")
@source_options
@plugin_options
@debug_option
def command(
    ref: str | None,
    to: str | None,
    output: str | None,
    adapters: tuple[str, ...],
    calibrate: str | None,
    imatrix: str | None,
    dtype: str | None,
    split_size: str | None,
    group_size: int | None,
    act_order: bool,
    damping: float | None,
    requantize: bool,
    force: bool,
    listed: bool,
    revision: str | None,
    offline: bool | None,
    disable: tuple[str, ...],
    only: tuple[str, ...],
) -> None:
    """Write REF in another format or quantization scheme (--to) at --output. Run the same command
    again to continue an interrupted run."""
    from inferno.catalog import load_catalog
    from inferno.contracts import FetchOptions, WriteOptions
    from inferno.host import format_bytes, parse_size

    catalog = load_catalog(disable=disable, only=only)
    if listed:
        _list(catalog)
        return
    if ref is None or to is None or output is None:
        raise click.UsageError(
            "Give a model, --to NAME and -o PATH; `inferno convert --list` shows the names."
        )
    from inferno_convert.convert import convert

    options = WriteOptions(
        dtype=None if dtype is None else DTYPES[dtype],
        split=None if split_size is None else parse_size(split_size, "--split-size"),
        group=group_size,
        act_order=act_order,
        damping=damping,
    )
    with progress_bar() as progress:
        made = convert(
            ref,
            to,
            Path(output),
            options,
            adapters=adapters,
            calibrate=None if calibrate is None else Path(calibrate),
            imatrix=None if imatrix is None else Path(imatrix),
            force=force,
            requantize=requantize,
            fetch=FetchOptions(revision=revision, offline=bool(offline), progress=True),
            catalog=catalog,
            progress=progress,
            say=lambda note: click.echo(f"  {note}", err=True),
        )
    count = len(made.files)
    size = f"{format_bytes(made.nbytes)} in {count} file{'s' * (count != 1)}"
    click.echo(f"Wrote {made.path}: {size}.")
    for note in made.notes:
        click.echo(f"  {note}")


def _list(catalog: Catalog) -> None:
    writers = sorted((o.item.name, o.item.describe) for o in catalog.of("inferno_writers"))
    width = max((len(name) for name, _ in writers), default=0)
    for name, describe in writers:
        click.echo(f"{name:{width}}  {describe}")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Draw a bar on stderr, if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), DownloadColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield progress
