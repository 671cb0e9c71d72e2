"""Reads messages in `inferno chat`: from a terminal with an editor, or from a pipe, where each line
is one message."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

KEYS = (
    "A paste stays one message. Alt-Enter or Ctrl-J starts a new line, as does Enter after a \\ or "
    'an opening """. Ctrl-C stops an answer, Ctrl-D exits.'
)

Reader = Callable[[str], str | None]
"""Shows a prompt; returns the next message, or None at the end of the input. Raises
KeyboardInterrupt."""


@contextlib.contextmanager
def message_reader(commands: Sequence[str], history: bool) -> Iterator[Reader]:
    """Read messages from stdin. On a terminal, the editor completes commands and paths, and
    `history` keeps on disk what was typed."""
    screen = next((each for each in (sys.stdout, sys.stderr) if each.isatty()), None)
    if screen is None or not sys.stdin.isatty():
        yield _piped
        return
    from inferno.cli.editor import editor

    with editor(screen, commands, history) as read:
        yield read


def _piped(prompt: str) -> str | None:
    line = sys.stdin.readline()
    return line.strip() if line else None
