"""The command `inferno verify`: what a checkpoint could make inferno do."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Command


@hookimpl
def inferno_commands() -> list[Command]:
    return [
        Command(
            name="verify",
            help="Try a checkpoint in a bounded process, and say what it could do.",
            command="inferno_verify.command:command",
        )
    ]
