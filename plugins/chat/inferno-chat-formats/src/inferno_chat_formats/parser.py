"""Parsers of one output: what all of them share, and the parser of formats whose calls have
markers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from inferno.contracts import Delta
from inferno_chat_formats.calls import Call, new_id, read_call
from inferno_chat_formats.reader import Broken, Markers, Text, Wait
from inferno_chat_formats.spec import Calls, IdStyle, Slot, Spec, beginning
from inferno_chat_formats.values import Tools

MAX_BROKEN = 32
"""Broken calls after which the rest of an output is content: each may be read to its end."""


class Machine(Protocol):
    """A format's reading of an output, as a generator that waits for text."""

    def __call__(self, parser: Parser) -> Generator[None, None, None]: ...


class Parser:
    """Feeds text to a machine, and collects the deltas that it emits."""

    def __init__(self, machine: Machine, ids: IdStyle, *, parallel: bool) -> None:
        self.text = Text()
        self.num_calls = 0
        self._ids, self._parallel = ids, parallel
        self._out: list[Delta] = []
        self._machine = machine(self)
        self._running = True

    def feed(self, text: str) -> list[Delta]:
        self.text.buffer += text
        return self._advance()

    def finish(self) -> list[Delta]:
        self.text.ended = True
        return self._advance()

    def _advance(self) -> list[Delta]:
        if self._running:
            self._running = next(self._machine, False) is None
        out, self._out = self._out, []
        return out

    # --- what machines call ---

    def content(self, text: str) -> None:
        if text:
            self._out.append(Delta("content", text))

    def reasoning(self, text: str) -> None:
        if text:
            self._out.append(Delta("reasoning", text))

    def calls(self, calls: list[Call]) -> None:
        for call in calls:
            if self._parallel or not self.num_calls:
                id = new_id(self._ids, call, self.num_calls)
                self._out.append(Delta("tool", call.arguments, call.name, id))
                self.num_calls += 1


class Tagged:
    """Reasoning between markers, content, and calls that begin with a marker or are the whole
    answer."""

    def __init__(
        self, spec: Spec, reasoning: tuple[str, str] | None, tools: Tools, *, opened: bool
    ) -> None:
        self.spec, self.think, self.tools, self.opened = spec, reasoning, tools, opened
        calls = spec.calls if tools else ()
        self.marked: dict[str, list[Calls]] = {}
        """By what a call begins with: a section's opening, or a call's if the section's is
        missing."""
        for each in calls:
            for first in (each.opening, each.call[0]):
                if marker := beginning(first):
                    self.marked.setdefault(marker, []).append(each)
        self.bare = [each for each in calls if each.bare]
        self.markers = Markers([*self.marked, *spec.around])
        self.opens, self.closes = spec.answer or ("", "")
        self.salutation = spec.salutation if tools else ""

    def __call__(self, parser: Parser) -> Generator[None, None, None]:
        text, broken = parser.text, 0
        if self.opened:
            yield from self._reason(parser)
        at_start, trim, closed = True, self.opened, False
        while True:
            if at_start and self.think is not None and (yield from text.accept(self.think[0])):
                yield from self._reason(parser)
                trim = True
                continue
            if at_start and self.bare and (yield from self._bare(parser)):
                trim = True
                continue
            if at_start and self.salutation and (yield from text.accept(self.salutation)):
                at_start, trim = False, True
                continue
            marker, gap, seen = yield from self._content(parser, trim=trim, closed=closed)
            # Markers that are dropped may come before a call.
            at_start, trim = at_start and bool(marker) and not seen, trim and not seen
            trim, closed = trim or marker == self.opens, marker == self.closes
            if not marker:
                return
            if marker in self.marked:
                if broken < MAX_BROKEN and (yield from self._section(parser, marker)):
                    at_start = trim = True
                    continue
                broken, trim = broken + 1, False
                parser.content(gap + marker)

    def _reason(self, parser: Parser) -> Wait[None]:
        """Read reasoning to its closing marker, without the line breaks around it."""
        assert self.think is not None, "reasoning has markers"
        text, closing = parser.text, self.think[1].strip()
        ends = Markers([closing, *(self.marked if self.spec.call_ends_reasoning else ())])
        yield from _skip_breaks(text)
        while True:
            match = text.find(ends)
            if match or text.ended:
                end = match[0] if match else len(text.buffer)
                piece = text.buffer[text.pos : end]
                text.pos = end
                parser.reasoning(piece.rstrip("\n"))
                if match and match[1] == closing:
                    text.pos += len(closing)
                return
            end = _before_space(text.buffer, text.pos, text.held(ends))
            piece, text.pos = text.buffer[text.pos : end], end
            parser.reasoning(piece)
            text.forget()
            yield from text.more()

    def _content(self, parser: Parser, *, trim: bool, closed: bool) -> Wait[tuple[str, str, bool]]:
        """Emit content up to a marker, and read the marker. Returns it, empty at the end; the white
        space before it, which is not content before a call; and whether there was content. With
        `trim`, white space after reasoning or a call is not content either; if `closed`, neither is
        white space alone, after the answer's closing marker."""
        text, seen = parser.text, False
        holds = bool(self.marked or self.closes)
        while True:
            if trim and not seen:
                yield from text.skip_space()
            match = text.find(self.markers)
            if match:
                piece, text.pos = text.buffer[text.pos : match[0]], match[0]
                marker = yield from text.longest(self.markers)
                front = piece.rstrip() if marker in self.marked or marker == self.closes else piece
                parser.content(front)
                return marker, piece[len(front) :], seen or bool(front)
            end = len(text.buffer)
            if holds and not text.ended:
                end = _before_space(text.buffer, text.pos, text.held(self.markers))
            elif not text.ended:
                end = text.held(self.markers)
            piece, text.pos = text.buffer[text.pos : end], end
            piece = "" if closed and not seen and piece.isspace() else piece
            parser.content(piece)
            seen = seen or bool(piece)
            if text.ended:
                return "", "", seen
            text.forget()
            yield from text.more()

    def _section(self, parser: Parser, marker: str) -> Wait[bool]:
        """Read calls after a marker that opens them. Returns False, and reads nothing more, if it
        does not."""
        text = parser.text
        start = text.pos
        for calls in self.marked[marker]:
            if marker != beginning(calls.opening):
                text.pos = start - len(marker)
            if (yield from self._calls(parser, calls)):
                return True
            text.pos = start
        return False

    def _calls(self, parser: Parser, calls: Calls) -> Wait[bool]:
        """Read calls one after another. Returns False if the first is broken; reading stops at any
        other that is broken."""
        text, num_read = parser.text, 0
        while True:
            start = text.pos
            if num_read and calls.closing and (yield from text.accept(calls.closing)):
                return True
            try:
                if num_read:
                    yield from text.expect(calls.between)
                new_calls = yield from read_call(text, calls, self.tools)
            except Broken:
                text.pos = start
                return num_read > 0
            parser.calls(new_calls)
            num_read += 1
            if not calls.repeated and not calls.closing:
                return True

    def _bare(self, parser: Parser) -> Wait[bool]:
        """Read an answer that is a call without markers, of known tools. Returns False, and reads
        nothing, if it is not one."""
        text = parser.text
        start = text.pos
        for calls in self.bare:
            try:
                if parser.num_calls:
                    yield from text.accept(calls.between)
                yield from _looks_like(text, calls)
                new_calls = yield from read_call(text, calls, self.tools)
                if all(call.name in self.tools for call in new_calls):
                    parser.calls(new_calls)
                    return True
            except Broken:
                pass
            text.pos = start
        return False


def _looks_like(text: Text, calls: Calls) -> Wait[None]:
    """Check the beginning of a call without a marker, so as not to wait for the end of something
    else. Raises Broken."""
    start = text.pos
    if calls.call[0] is Slot.PYTHON:
        yield from text.expect("[")
        yield from text.name()
        yield from text.expect("(")
    else:
        if not (yield from text.accept("[")) or calls.call[0] is not Slot.OBJECTS:
            text.pos = start
        yield from text.expect('{ "')
        if (yield from text.until('"', most=32)) not in calls.keys.known | {"function"}:
            raise Broken
    text.pos = start


def _skip_breaks(text: Text) -> Wait[None]:
    while (yield from text.peek()) == "\n":
        text.pos += 1


def _before_space(buffer: str, start: int, end: int) -> int:
    """Return where the white space that ends the text begins."""
    while end > start and buffer[end - 1].isspace():
        end -= 1
    return end
