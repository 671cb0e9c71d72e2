"""Lines for a person: wrapped between words where a terminal shows them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO

import rich_click as click


def say(text: str) -> None:
    """Print a note to stderr: stdout has the answers."""
    click.echo(wrapped(text, width_of(sys.stderr)), err=True)


def width_of(stream: TextIO) -> int | None:
    """Return the columns of the terminal that shows `stream`; None if none does."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(text: str, width: int | None, indent: int = 0) -> str:
    """Return the text with no line longer than `width`, if words allow it. Continuations are
    indented, as is each line's own beginning."""
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        margin = len(line) - len(line.lstrip(" "))
        lines += textwrap.wrap(
            line[margin:],
            max(width, indent + 20),
            initial_indent=" " * margin,
            subsequent_indent=" " * (indent or margin),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
