"""`inferno plugins`: the installed plugins, what they offer, and why any failed to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from inferno.cli import DEBUG
from inferno.cli.options import debug_option, declare, plugin_options

if TYPE_CHECKING:
    from inferno.catalog import Plugin

MOST_NAMES = 24


@declare
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@plugin_options
@debug_option
@click.pass_context
def command(
    ctx: click.Context, as_json: bool, disable: tuple[str, ...], only: tuple[str, ...]
) -> None:
    """List the installed plugins and what they offer."""
    import json

    from inferno.catalog import GROUPS, load_catalog

    plugins = load_catalog(disable=disable, only=only, groups=GROUPS).plugins
    if as_json:
        click.echo(json.dumps([_entry(plugin) for plugin in plugins], indent=2))
        return
    for plugin in plugins:
        click.echo(
            f"{click.style(plugin.name, bold=True)}  {plugin.distribution} "
            f"{plugin.version}{_state(plugin)}"
        )
        for hook, names in plugin.offers.items():
            click.echo(f"  {_noun(hook):<20} {_listed(names)}")
        if plugin.error:
            click.echo(
                f"  {plugin.error}\n  {plugin.remedy} (Or run without it: --disable {plugin.name})"
            )
            click.echo(plugin.detail if ctx.meta.get(DEBUG) else "  (--debug shows the traceback)")
        elif not (plugin.offers or plugin.set_aside or plugin.disabled):
            click.echo("  offers nothing: hooks return lists of declarations")
        for aside in plugin.set_aside:
            click.echo(f"  {click.style('set aside', fg='red')}: {aside.reason}. {aside.remedy}")


def _entry(plugin: Plugin) -> dict[str, object]:
    import attrs

    state = "broken" if plugin.error else "disabled" if plugin.disabled else "loaded"
    entry: dict[str, object] = {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "state": state,
        "offers": {hook: list(names) for hook, names in plugin.offers.items()},
    }
    if plugin.set_aside:
        entry["set_aside"] = [attrs.asdict(aside) for aside in plugin.set_aside]
    if plugin.error:
        entry |= {"error": plugin.error, "remedy": plugin.remedy, "detail": plugin.detail}
    return entry


def _state(plugin: Plugin) -> str:
    if plugin.error:
        return click.style("  broken", fg="red")
    return click.style("  disabled", fg="yellow") if plugin.disabled else ""


def _listed(names: tuple[str, ...]) -> str:
    """At most `MOST_NAMES` of the names; `--json` prints all."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _noun(hook: str) -> str:
    return hook.removeprefix("inferno_").replace("_", " ")
