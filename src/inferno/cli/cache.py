"""`inferno cache`: the packed weights that are kept on disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.options import debug_option, declare

if TYPE_CHECKING:
    from inferno.weights.packed import Entry, PackedStore


@declare
@click.argument("action", type=click.Choice(["ls", "rm", "verify"]))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--packed-cache", metavar="DIR", help="The folder. [default: that of the engine's option]"
)
@click.option("--all", "everything", is_flag=True, help="With rm: remove all files.")
@click.option("--json", "as_json", is_flag=True, help="With ls: print the list as JSON.")
@debug_option
@click.pass_context
def command(
    ctx: click.Context,
    action: str,
    names: tuple[str, ...],
    packed_cache: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """List (ls), remove (rm) or check (verify) the packed weights of earlier starts.

    NAME is a model's, or the first letters of a file's.
    """
    from pathlib import Path

    from inferno.errors import OptionError
    from inferno.plan import Machine
    from inferno.plan.packed_folder import default_folder
    from inferno.weights.packed import PackedStore

    if packed_cache in (None, "auto", "none"):
        folder = default_folder(Machine().environ)
    else:
        folder = Path(str(packed_cache)).expanduser()
    store = PackedStore(folder)
    if action == "rm" and bool(names) == everything:
        raise OptionError("what to remove is not clear", "Give names, or --all without any.")
    entries = _named(store, names)
    if action == "ls":
        _list(store, entries, as_json)
    elif action == "verify":
        _verify(store, entries, ctx)
    else:
        for entry in entries:
            store.remove(entry.name)
        click.echo(f"Removed {_count(entries)}.")


def _named(store: PackedStore, names: tuple[str, ...]) -> list[Entry]:
    """Return the entries with one of these names, or all. Raises OptionError for a name without
    any."""
    from inferno.errors import OptionError

    entries = store.entries()
    if not names:
        return entries
    for name in names:
        if not any(_is(entry, name) for entry in entries):
            raise OptionError(
                f"no packed weights are named {name!r}", "`inferno cache ls` shows the names."
            )
    return [entry for entry in entries if any(_is(entry, name) for name in names)]


def _is(entry: Entry, name: str) -> bool:
    return bool(name) and (entry.name.startswith(name) or entry.about.get("model") == name)


def _list(store: PackedStore, entries: list[Entry], as_json: bool) -> None:
    from inferno.host import format_bytes

    if as_json:
        import json

        import attrs

        listed = [attrs.asdict(entry) | {"about": dict(entry.about)} for entry in entries]
        click.echo(json.dumps({"folder": str(store.folder), "files": listed}, indent=2))
        return
    if not entries:
        click.echo(f"No packed weights in {store.folder}.")
        return
    rows: list[tuple[str, ...]] = [("NAME", "SIZE", "LAST USED", "TYPE", "MODEL")]
    rows += [
        (e.name[:12], format_bytes(e.nbytes), _ago(e.used), _kind(e), str(e.about.get("model", "")))
        for e in entries
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    click.echo(f"{_count(entries)} in {store.folder}")


def _kind(entry: Entry) -> str:
    if entry.damage is not None:
        return f"damaged: {entry.damage}"
    return str(entry.about.get("isq") or entry.about.get("dtype", ""))


def _verify(store: PackedStore, entries: list[Entry], ctx: click.Context) -> None:
    """Read every file whole. A damaged one is removed, and the exit code is 1."""
    damaged = 0
    for entry in entries:
        damage: Any = store.damage(entry.name)
        label = f"{entry.name[:12]}  {entry.about.get('model', '')}".rstrip()
        if damage is None:
            click.echo(f"{label}: good")
        else:
            damaged += 1
            store.remove(entry.name)
            click.echo(f"{label}: removed, {damage}")
    if not entries:
        click.echo(f"No packed weights in {store.folder}.")
    if damaged:
        ctx.exit(1)


def _count(entries: list[Entry]) -> str:
    from inferno.host import format_bytes

    size = format_bytes(sum(entry.nbytes for entry in entries))
    return f"{len(entries)} file{'s' * (len(entries) != 1)}, {size}"


def _ago(when: float) -> str:
    seconds = max(0, int(time.time() - when))
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = seconds // length
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "now"
