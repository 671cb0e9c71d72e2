"""The command line. Each command is a separate module. It imports what it runs inside its function,
so that help imports only what declares the options.

Options beat `INFERNO_*` variables beat defaults. Errors are one line of cause and one of remedy on
stderr. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 model not found or not supported, 4 not
enough memory, 5 plugin error, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import Exit

from inferno import __version__
from inferno.errors import InfernoError, OutOfMemoryError

if TYPE_CHECKING:
    from inferno.catalog import Offer
    from inferno.contracts import Command
    from inferno.process.launch import EngineProcess

COMMANDS = {
    "serve": "Serve models over HTTP, with OpenAI's API.",
    "chat": "Chat with a model.",
    "generate": "Answer prompts.",
    "run-batch": "Answer the requests of a file.",
    "rank": "Compute with the engine that another machine runs.",
    "bench": "Measure a model's speed on random tokens.",
    "explain": "Show which plugins would run a model, in how much memory, and why.",
    "plugins": "List the installed plugins and what they offer.",
    "pull": "Download a model.",
    "cache": "List, remove or check the packed weights of earlier starts.",
    "ps": "Show the models of a running server.",
    "load": "Load a model of a running server.",
    "unload": "Unload a model of a running server.",
    "completion": "Print a script that completes commands and options in a shell.",
}
"""Commands in help order, and what the list says of each, so that listing imports none. Each is
`inferno.cli.<name>:command`, with _ for -. Plugins add others (`inferno_commands`)."""


class _LazyGroup(click.RichGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(_plugin_commands(ctx))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            if ctx.meta.get(_LISTING):
                return click.Command(cmd_name, help=COMMANDS[cmd_name])
            module = importlib.import_module(f"inferno.cli.{cmd_name.replace('-', '_')}")
            command: click.Command = module.command
            return command
        offers = _plugin_commands(ctx).get(cmd_name)
        if offers is None:
            return None
        if ctx.meta.get(_LISTING):
            return click.Command(cmd_name, help=offers[0].item.help)
        return _command_of(offers)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        ctx.meta[_LISTING] = True
        try:
            super().format_options(ctx, formatter)
        finally:
            del ctx.meta[_LISTING]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            self._refuse_unknown(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _refuse_unknown(self, ctx: click.Context, name: str) -> None:
        """End with a hint, unless a plugin has the command."""
        known = self.list_commands(ctx)
        if name in known:
            return
        from difflib import get_close_matches

        from inferno.catalog import GROUPS, load_catalog

        if near := get_close_matches(name, known, n=1):
            hint = f"Did you mean `inferno {near[0]}`?"
        else:
            catalog = load_catalog(groups=GROUPS)
            hint = catalog.hint("command", name) or f"Commands: {', '.join(known)}."
            for plugin in catalog.broken:
                if plugin.name == name or plugin.distribution == f"inferno-{name}":
                    hint = f"{plugin.distribution} did not load ({plugin.error}). {plugin.remedy}"
        ctx.fail(f"No such command '{name}'. {hint}")

    def invoke(self, ctx: click.Context) -> Any:
        # `inferno --help` ends before this
        from inferno.host import sleep_at_barriers, starved

        sleep_at_barriers()  # before any command imports torch
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(130)
        except (click.ClickException, Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.meta.get(DEBUG):
                if isinstance(error, InfernoError) and error.detail:
                    error.add_note(error.detail)
                raise
            error = error if isinstance(error, OutOfMemoryError) else starved(error) or error
            report(error)
            ctx.exit(error.exit_code if isinstance(error, InfernoError) else 1)


def _plugin_commands(ctx: click.Context) -> dict[str, list[Offer[Command]]]:
    """Return what plugins offer under each name that is not taken by a command of this package, the
    same for all calls of one command line. Without such a plugin nothing more is imported."""
    from importlib.metadata import entry_points

    offers: dict[str, list[Offer[Command]]] = ctx.meta.get(_OFFERS, {})
    if _OFFERS not in ctx.meta and entry_points(group="inferno.commands"):
        from inferno.catalog import load_catalog

        for offer in load_catalog(groups=["inferno.commands"]).of("inferno_commands"):
            if offer.item.name not in COMMANDS:
                offers.setdefault(offer.item.name, []).append(offer)
    ctx.meta[_OFFERS] = offers
    return offers


def _command_of(offers: list[Offer[Command]]) -> click.Command:
    """Import the command that a plugin offers. Raises PluginError if two do, or if it is none."""
    from inferno.contracts.lazy import resolved
    from inferno.errors import PluginError

    offer, *others = offers
    if others:
        names = " and ".join(o.distribution for o in offers)
        raise PluginError(
            f"the command {offer.item.name!r} is offered by {names}", "Uninstall one of them."
        )
    command = resolved(offer.item.command)
    if not isinstance(command, click.Command):
        raise PluginError(
            f"{offer.distribution}: the command {offer.item.name!r} is {command!r}",
            "It must be a click.Command: see the hooks reference, inferno_commands.",
        )
    return command


_OFFERS = "inferno.offers"
"""Key of `ctx.meta`: the commands of plugins, once they were asked for."""
_LISTING = "inferno.listing"
"""Key of `ctx.meta`: whether commands are only listed."""
DEBUG = "inferno.debug"
"""Key of `ctx.meta`: whether to show tracebacks."""


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="inferno")
def cli() -> None:
    """Run and serve large language models."""


def main(args: list[str] | None = None, early: EngineProcess | None = None) -> None:
    """Run the `inferno` command. Does not return. `early` is the process that its engine gets
    (`inferno.cli.early`)."""
    arm_interrupt()
    cli.main(args, prog_name="inferno", obj=early)


def arm_interrupt() -> None:
    """Make the next Ctrl-C raise KeyboardInterrupt, and a second one during cleanup kill."""

    def interrupt(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def report(error: Exception) -> None:
    """Print the cause and the remedy to stderr. Without a remedy, print any traceback from another
    process."""
    if isinstance(error, InfernoError):
        cause, remedy, detail = error.cause, error.remedy, error.detail
    else:
        cause, detail = f"{type(error).__name__}: {error}", ""
        remedy = "This is a bug in inferno or a plugin: run again with --debug for the traceback."
    from inferno.cli.lines import say, width_of, wrapped

    cause = wrapped(f"Error: {cause}", width_of(sys.stderr)).removeprefix("Error: ")
    click.echo(click.style("Error: ", fg="red", bold=True) + cause, err=True)
    if remedy:  # it says more than a traceback
        say(remedy)
    elif detail:
        click.echo(detail.rstrip(), err=True)
