"""The editor of `inferno chat`: messages of several lines, completion, and a history on disk."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import rich_click as click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

HISTORY_LINES = 1000
BLOCK = '"""'
"""Opens and closes a message of several lines."""
_LINE_BREAK = "\u2028"
"""A line break within a message in the history's file, which has a line for each message."""
_PASTES_MARKED, _PASTES_PLAIN = "\x1b[?2004h", "\x1b[?2004l"


@contextlib.contextmanager
def editor(
    screen: TextIO, commands: Sequence[str], history: bool
) -> Iterator[Callable[[str], str | None]]:
    """Prepare the terminal. Yields what reads one message, given a prompt: None at the end of the
    input. Reading raises KeyboardInterrupt."""
    output = Vt100_Output.from_pty(screen)
    # Ask nothing about the cursor's position: over a slow line, a terminal answers after the editor
    # has ended, and that would be taken for typed text.
    output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        multiline=True,
        key_bindings=_keys(),
        completer=_Completer(commands),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        reserve_space_for_menu=0,
        history=_FileHistory(_history_file()) if history else InMemoryHistory(),
        prompt_continuation=lambda width, number, wrapped: " " * width if wrapped else _more(width),
        output=output,
    )
    with _typed_ahead(screen) as mark_pastes:

        def read(prompt: str) -> str | None:
            try:
                return message(session.prompt(prompt))
            except EOFError:
                return None
            finally:
                mark_pastes()

        yield read


@contextlib.contextmanager
def _typed_ahead(screen: TextIO) -> Iterator[Callable[[], None]]:
    """Let the editor get what is typed during an answer as it was typed, instead of the terminal
    echoing it into the answer: Enter is not Ctrl-J, and a paste is marked as one. Yields what
    marks pastes again after the editor has ended."""
    before = termios.tcgetattr(sys.stdin)
    quiet = termios.tcgetattr(sys.stdin)
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~(termios.ECHO | termios.ICANON)

    def mark(sequence: str = _PASTES_MARKED) -> None:
        screen.write(sequence)
        screen.flush()

    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        mark()
        yield mark
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            mark(_PASTES_PLAIN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def is_open(text: str) -> bool:
    """Whether a message begins a block that does not end yet."""
    return text.lstrip().startswith(BLOCK) and text.count(BLOCK) == 1


def message(text: str) -> str:
    """Return what was typed without the marks of a block and without blank lines around it."""
    stripped = text.strip()
    if stripped.count(BLOCK) == 2 and stripped.startswith(BLOCK) and stripped.endswith(BLOCK):
        return stripped.removeprefix(BLOCK).removesuffix(BLOCK).strip()
    return text.rstrip().lstrip("\r\n") if "\n" in stripped else stripped


def _more(width: int) -> str:
    return "." * (width - 1) + " "


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        elif is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("c-j")
    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class _Completer(Completer):
    """Completes the names of commands, and the paths that some of them take."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        line = document.text_before_cursor
        if line.startswith("/") and " " not in line:
            for name in self._commands:
                if name.startswith(line):
                    yield Completion(f"{name} ", -len(line))
        elif line.startswith(("/file ", "/load ", "/save ")):
            text = line.partition(" ")[2]
            for path in _paths(text):
                yield Completion(path, -len(text))


def _paths(text: str) -> Iterable[str]:
    given = Path(text).expanduser()
    folder, start = (given, "") if text.endswith("/") else (given.parent, given.name)
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(start))
    except OSError:
        return ()
    return (f"{path}/" if path.is_dir() else str(path) for path in paths)


class _FileHistory(History):
    """What was typed, in a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._shorten()

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        for line in reversed(self._lines()):
            yield line.replace(_LINE_BREAK, "\n")

    def store_string(self, string: str) -> None:
        # At once, and not at the end of the session, which may be killed or have a neighbour.
        line = string.replace("\n", _LINE_BREAK) + "\n"
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(file, "a", encoding="utf-8", errors="replace") as stream:
                stream.write(line)

    def _lines(self) -> list[str]:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.split("\n") if line]

    def _shorten(self) -> None:
        lines = self._lines()
        if len(lines) <= HISTORY_LINES:
            return
        handle, name = tempfile.mkstemp(dir=self._path.parent)  # only its owner can read it
        with open(handle, "w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines[-HISTORY_LINES:])
        os.replace(name, self._path)


def _history_file() -> Path:
    return Path(click.get_app_dir("inferno")) / "chat_history"
