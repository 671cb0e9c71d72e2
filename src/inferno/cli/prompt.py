"""Reads messages in `inferno chat`: from a terminal with line editing and a history, or from a
pipe, where each line is one message."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import rich_click as click

HISTORY_LINES = 1000
BLOCK = '"""'
"""Opens and closes a message of several lines."""


def read(prompt: str = "> ") -> str | None:
    """The next message, or None at the end of the input. Raises KeyboardInterrupt."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    try:
        text = input(prompt)
        if text.lstrip().startswith(BLOCK):
            return _block(text.lstrip()[len(BLOCK) :])
        while text.endswith("\\"):
            text = text[:-1] + "\n" + input(_more(prompt))
    except EOFError:
        click.echo()
        return None
    return text.strip()


def _block(text: str) -> str:
    while BLOCK not in text:
        text += "\n" + input(_more("> "))
    return text[: text.index(BLOCK)].strip()


def _more(prompt: str) -> str:
    return "." * (len(prompt) - 1) + " "


@contextlib.contextmanager
def line_editing(commands: Sequence[str], history: bool) -> Iterator[None]:
    """Give `read` line editing, completion of commands and paths, and a history that is kept."""
    try:
        import readline
    except ImportError:  # a Python without it
        yield
        return
    path = _history_file()
    if history:
        with contextlib.suppress(OSError):
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    readline.set_completer(lambda text, i: _complete(readline.get_line_buffer(), text, i, commands))
    try:
        yield
    finally:
        readline.set_completer(None)
        if history:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                readline.write_history_file(path)


def _complete(line: str, text: str, i: int, commands: Sequence[str]) -> str | None:
    if line.startswith("/") and " " not in line:
        found = [f"{name} " for name in commands if name.startswith(text)]
    elif line.startswith(("/file ", "/load ", "/save ")):
        given = Path(text).expanduser()
        folder, start = (given, "") if text.endswith("/") else (given.parent, given.name)
        try:
            paths = sorted(path for path in folder.iterdir() if path.name.startswith(start))
        except OSError:
            paths = []
        found = [f"{path}/" if path.is_dir() else str(path) for path in paths]
    else:
        found = []
    return found[i] if i < len(found) else None


def _history_file() -> Path:
    return Path(click.get_app_dir("inferno")) / "chat_history"
