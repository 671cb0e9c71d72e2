"""Commands of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from inferno.contracts import lazy


@frozen(kw_only=True)
class Command:
    """A command of the command line: `inferno NAME`."""

    name: str
    help: str
    """What it does, in one line, for the list of commands."""
    command: Callable[..., Any] = field(converter=lazy.function)
    """The command, a `click.Command` or a group of several. Imported when it is run or its own help
    is asked for; it imports what is heavy, torch above all, inside its function."""
    api_version: int = 1
