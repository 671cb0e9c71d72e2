"""The command `inferno scribe`."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Command


@hookimpl
def inferno_commands() -> list[Command]:
    return [
        Command(
            name="scribe",
            help="Write the tokens that follow others.",
            command="inferno_scribe.command:scribe",
        )
    ]
