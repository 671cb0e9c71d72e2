"""Where `inferno chat` shows an answer while it is generated: as Markdown on a terminal, as it is
in a pipe or a file."""

from __future__ import annotations

import re
import sys
import time
from typing import Protocol

from attrs import define, field
from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from inferno.cli.chat_model import Piece
from inferno.cli.redrawn import Redrawn, Trimmed

REFRESH_SECONDS = 0.06
_THOUGHT_LINES = 3
"""Lines of unfinished thoughts that are shown."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that could move the cursor, retitle the window or worse: a model must not."""


class Screen(Protocol):
    def show(self, piece: Piece) -> None:
        """Show what is new of the answer."""
        ...

    def close(self) -> None:
        """The answer has ended, complete or not. May be called twice."""
        ...


@define
class Plain:
    """Writes the answer without thoughts."""

    _open: bool = False

    def show(self, piece: Piece) -> None:
        if piece.kind != "reasoning":
            text = piece.text if not sys.stdout.isatty() else printable(piece.text)
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = True

    def close(self) -> None:
        if self._open:
            sys.stdout.write("\n")
        self._open = False


@define
class Terminal:
    """Shows Markdown that grows. Blocks that are complete are printed for good; the last one, and
    the end of unfinished thoughts, are drawn again as they grow."""

    console: Console
    _growing: Redrawn = field(init=False)
    _thought: str = ""
    _thinking_since: float = 0.0
    _text: str = ""
    _printed: bool = False
    """Whether a block was printed, so that a blank line must follow."""
    _drawn: float = field(default=0.0)

    def __attrs_post_init__(self) -> None:
        self._growing = Redrawn(self.console)

    def show(self, piece: Piece) -> None:
        if piece.kind == "reasoning":
            self._thinking_since = self._thinking_since or time.monotonic()
            self._thought += printable(piece.text)
        else:
            self._fold_thought()
            self._text += printable(piece.text)
        now = time.monotonic()
        if now - self._drawn >= REFRESH_SECONDS:
            self._print_complete()
            self._growing.draw(self._unfinished())
            self._drawn = now

    def close(self) -> None:
        self._fold_thought()
        self._growing.erase()
        self._print(self._text)
        self._text = ""

    def _fold_thought(self) -> None:
        if self._thinking_since:
            seconds = time.monotonic() - self._thinking_since
            note = f"Thought for {seconds:.1f} s (/think show prints it)"
            self._growing.erase()
            self.console.print(Text(note, style="dim italic"))
            self._thinking_since, self._printed = 0.0, True

    def _print_complete(self) -> None:
        end = complete(self._text)
        self._print(self._text[:end])
        self._text = self._text[end:]

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        self._growing.erase()
        if self._printed:
            self.console.print()
        self.console.print(Trimmed(_markdown(text)), end="")
        self._printed = True

    def _unfinished(self) -> list[list[Segment]]:
        """Return the end of what is not complete, as far as it fits on the screen."""
        if self._thinking_since:
            width = max(20, self.console.width - 2)
            words = Text(" ".join(self._thought.split())[-width * _THOUGHT_LINES :])
            lines = words.wrap(self.console, width)[-_THOUGHT_LINES:]
            text = "Thinking\n" + "\n".join(f"  {line}" for line in lines)
            return self.console.render_lines(Text(text, style="dim italic"))
        rows: list[list[Segment]] = [[]] if self._printed else []
        rows += self.console.render_lines(_markdown(self._text))
        return rows[-max(4, self.console.height - 2) :]


def printable(text: str) -> str:
    """`text` without control characters."""
    return _CONTROL.sub("", text)


def complete(text: str) -> int:
    """The number of characters in front of the last block that has begun for certain: what comes
    later cannot change them. The block's first line is complete, and unless an empty line precedes
    it, the second is too: that one makes a table of the first."""
    blocks = [token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map]
    lines = text.split("\n")
    begun = [at for at in blocks if at + bool(lines[at - 1].strip()) < len(lines) - 1]
    if not begun or begun[-1] == blocks[0]:
        return 0
    return len("\n".join(lines[: begun[-1]])) + 1


_PARSER = MarkdownIt().enable("strikethrough").enable("table")  # as rich's Markdown


def _markdown(text: str) -> Markdown:
    # Its links would hide where they lead, and its other themes paint a background.
    return Markdown(text, code_theme="ansi_dark", hyperlinks=False)
