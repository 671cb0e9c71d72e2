"""What a terminal shows of an answer while it grows, in windows whose width changes."""

from __future__ import annotations

import io
import re

import pytest
from attrs import define, field
from rich.cells import chop_cells
from rich.console import Console

from inferno.cli.chat_model import Piece
from inferno.cli.screen import Terminal
from inferno.testing import alike

_PARTS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")


@define
class Window:
    """A terminal's window, as high as what it shows, that wraps its lines anew when its width
    changes, as most do."""

    width: int
    lines: list[str] = field(factory=lambda: [""])
    """As they were printed: a long one takes several rows."""
    at: int = 0
    """The cursor's line, at whose end it writes."""
    row: int = 0
    """The cursor's row of this line, on its way up."""

    def show(self, output: str) -> None:
        for part in _PARTS.findall(output):
            if part == "\n":
                self.at, self.row = self.at + 1, 0
                self.lines += [""] * (self.at + 1 - len(self.lines))
            elif part == "\x1b[1A":
                self.row_up()
            elif part == "\x1b[2K":
                self.erase_row()
            elif not part.startswith(("\x1b", "\r")):
                self.lines[self.at] += part

    def row_up(self) -> None:
        if self.row:
            self.row -= 1
        else:
            self.at -= 1
            self.row = len(self._wrapped(self.at)) - 1

    def erase_row(self) -> None:
        """Of a line that is wrapped: what comes after the row was erased before."""
        self.lines[self.at] = "".join(self._wrapped(self.at)[: self.row])

    def _wrapped(self, at: int) -> list[str]:
        return chop_cells(self.lines[at], self.width) or [""]

    @property
    def rows(self) -> list[str]:
        return [row for at in range(len(self.lines)) for row in self._wrapped(at)]


def shown(text: str, size: int, widths: list[int], thoughts: str = "") -> Window:
    """Show an answer in pieces of `size` characters while the window takes these widths in turn."""
    file, window = io.StringIO(), Window(widths[0])
    console = Console(file=file, force_terminal=True, width=widths[0], height=12)
    screen = Terminal(console)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    if thoughts:
        screen.show(Piece("reasoning", thoughts))
    for turn, piece in enumerate(pieces):
        screen._drawn = 0.0  # every piece is drawn, however fast they come
        screen.show(Piece("content", piece))
        window.show(file.getvalue())
        file.seek(file.truncate(0))
        window.width = widths[turn * len(widths) // len(pieces)]
        console.width = window.width
    screen.close()
    screen.close()
    window.show(file.getvalue())
    return window


@alike
@pytest.mark.parametrize("size", [1, 13, 400])
def test_a_terminal_prints_every_line_once(size: int) -> None:
    """Also of a block that is higher than the screen, which is cut while it grows."""
    lines = [f"line {i}" for i in range(60)]
    text = "First.\n\n```text\n" + "\n".join(lines) + "\n```\n\nLast **one**."
    rows = [row.strip() for row in shown(text, size, [60], thoughts="hm " * 200).rows]
    assert [row for row in rows if row.startswith("line")] == lines
    assert [row for row in rows if row.startswith(("First", "Last"))] == ["First.", "Last one."]


@pytest.mark.parametrize("widths", [[90, 60, 40], [40, 90], [90, 33, 90, 70, 45], [60, 61, 60]])
def test_a_window_that_changes_its_width_shows_the_answer_once(widths: list[int]) -> None:
    words = [f"word{i}" for i in range(50)] + [f"漢字{i}" for i in range(20)]
    text = f"1. {' '.join(words[:40])}\n2. {' '.join(words[40:])}\n\n```\nx = 1\n```\n\nThe end."
    window = shown(text, 7, widths)
    pieces = re.findall(r"word\d+|漢字\d+|x = 1|The end\.", " ".join(window.lines))
    assert pieces == [*words, "x = 1", "The end."]


def test_a_narrower_window_has_no_rows_of_blanks() -> None:
    """A line that ends in blanks would wrap into an empty row."""
    window = shown("- one\n- two\n\n```\nx = 1\n```\n\nThe end.", 400, [90])
    rows = len(window.rows)
    window.width = 30
    assert len(window.rows) == rows
