"""Lines at the end of a terminal that are drawn again while their text grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from attrs import define, field
from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.control import Control
from rich.segment import ControlType, Segment


@define
class Redrawn:
    """Draws lines over those that it drew before, also after the window's width has changed:
    terminals wrap what they show anew, so that an old line may take more rows, or fewer."""

    console: Console
    _drawn: list[list[Segment]] = field(factory=list)
    _width: int = 0
    _hides_cursor: bool = False

    def draw(self, lines: Iterable[Sequence[Segment]]) -> None:
        """Replace the lines that were drawn."""
        if not self._hides_cursor:
            self._hides_cursor = self.console.show_cursor(False)
        new, same = [trimmed(line) for line in lines], 0
        if self.console.width == self._width:
            # tmux tells of a new width a quarter of a second late: few rows are at stake.
            pairs = zip(self._drawn, new, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._replace(same, new[same:])

    def erase(self) -> None:
        """Remove the lines that were drawn; what is printed next is in their place."""
        self._replace(0, [])
        if self._hides_cursor:
            self.console.show_cursor(True)
            self._hides_cursor = False

    def _replace(self, kept: int, lines: Sequence[list[Segment]]) -> None:
        """Draw lines in the place of those after the first `kept`."""
        self._width = self.console.width
        texts = ["".join(segment.text for segment in line) for line in self._drawn[kept:]]
        rows = sum(len(chop_cells(text, max(2, self._width))) or 1 for text in texts)
        self.console.print(_Replaced(rows, lines), end="")
        self._drawn[kept:] = lines


@define
class Trimmed:
    """What is printed without blanks at the ends of its lines: in a narrower window, a terminal
    would wrap them into empty lines."""

    shown: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _joined(trimmed(line) for line in console.render_lines(self.shown, options))


def trimmed(line: Sequence[Segment]) -> list[Segment]:
    """Return the line without blanks at its end that nothing shows."""
    segments = list(line)
    while segments and not (segments[-1].style and segments[-1].style.bgcolor):
        text = segments[-1].text.rstrip(" ")
        if text:
            segments[-1] = Segment(text, segments[-1].style)
            break
        segments.pop()
    return segments


@define
class _Replaced:
    """Lines in the place of as many rows above the cursor, in one piece: so nothing flickers."""

    rows: int
    lines: Sequence[Sequence[Segment]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Row by row: tmux keeps a copy of a screen that is erased from its first row to its end.
        up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
        yield Control(ControlType.CARRIAGE_RETURN, *up * self.rows)
        yield from _joined(self.lines)


def _joined(lines: Iterable[Sequence[Segment]]) -> Iterable[Segment]:
    for line in lines:
        yield from line
        yield Segment.line()
