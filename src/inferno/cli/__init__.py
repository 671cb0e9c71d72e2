"""The command line. Each command is a separate module. It imports what it runs inside its function,
so that help imports only what declares the options.

Options beat `INFERNO_*` variables beat defaults. Errors are one line of cause and one of remedy on
stderr. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 model not found or not supported, 4 not
enough memory, 5 plugin error, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import signal
from typing import Any

import rich_click as click
from click.exceptions import Exit

from inferno import __version__
from inferno.errors import InfernoError

COMMANDS = (
    "serve",
    "chat",
    "generate",
    "run-batch",
    "bench",
    "eval",
    "explain",
    "plugins",
    "pull",
    "convert",
    "package",
    "cache",
    "ps",
    "load",
    "unload",
)
"""Commands in help order. Each is `inferno.cli.<name>:command`, with _ for -."""


class _LazyGroup(click.RichGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(
            f"inferno.cli.{cmd_name.replace('-', '_')}"
        ).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = (
                f"Did you mean `inferno {near[0]}`?"
                if near
                else f"Commands: {', '.join(COMMANDS)}."
            )
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        from inferno.host import sleep_at_barriers  # `inferno --help` ends before this

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
            report(error)
            ctx.exit(error.exit_code if isinstance(error, InfernoError) else 1)


DEBUG = "inferno.debug"
"""Key of `ctx.meta`: whether to show tracebacks."""


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="inferno")
def cli() -> None:
    """Run and serve large language models."""


def main(args: list[str] | None = None) -> None:
    """Run the `inferno` command. Does not return."""
    arm_interrupt()
    cli.main(args, prog_name="inferno")


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
    click.echo(click.style("Error: ", fg="red", bold=True) + cause, err=True)
    if text := remedy or detail:  # a remedy says more than a traceback
        click.echo(text.rstrip(), err=True)
