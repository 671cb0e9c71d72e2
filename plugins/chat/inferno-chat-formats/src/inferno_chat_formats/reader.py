"""Reads text that may grow. Its methods are generators: each `yield` waits for more."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
Wait = Generator[None, None, T]

MAX_DEPTH = 400
"""Nesting of JSON beyond which a call is broken."""
MAX_NAME = 256
_NAME = re.compile(r"""[^\s"'<>{}\[\]()=,\\]+""")
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class Broken(Exception):
    """A call that is not what its format says, or is cut off."""


class Text:
    """What is not forgotten of the output so far, and a position in it."""

    def __init__(self) -> None:
        self.buffer, self.pos, self.ended = "", 0, False

    @property
    def rest(self) -> str:
        return self.buffer[self.pos :]

    def forget(self) -> None:
        """Drop what was read."""
        self.buffer, self.pos = self.rest, 0

    def more(self) -> Wait[bool]:
        """Wait for more text. False at the end of the output."""
        size = len(self.buffer)
        while len(self.buffer) == size and not self.ended:
            yield
        return len(self.buffer) > size

    def skip_space(self) -> Wait[None]:
        while True:
            while self.pos < len(self.buffer) and self.buffer[self.pos].isspace():
                self.pos += 1
            if self.pos < len(self.buffer) or not (yield from self.more()):
                return

    def accept(self, literal: str) -> Wait[bool]:
        """Read the literal if it comes next, with any white space at its ends or in place of its
        own."""
        start = self.pos
        for piece in literal.split():
            yield from self.skip_space()
            if not (yield from self.accept_exact(piece)):
                self.pos = start
                return False
        return True

    def accept_exact(self, piece: str) -> Wait[bool]:
        """Read the string if it comes next."""
        while (
            not self.buffer.startswith(piece, self.pos)
            and len(rest := self.rest) < len(piece)
            and piece.startswith(rest)
        ):
            if not (yield from self.more()):
                return False
        matches = self.buffer.startswith(piece, self.pos)
        self.pos += len(piece) if matches else 0
        return matches

    def expect(self, literal: str) -> Wait[None]:
        if not (yield from self.accept(literal)):
            raise Broken

    def peek(self) -> Wait[str]:
        """Return the next character, or an empty string at the end."""
        if self.pos == len(self.buffer) and not (yield from self.more()):
            return ""
        return self.buffer[self.pos]

    def name(self) -> Wait[str]:
        yield from self.skip_space()
        start = self.pos
        while True:
            span = _NAME.match(self.buffer, start)
            self.pos = span.end() if span else start
            if self.pos - start > MAX_NAME:
                raise Broken
            if self.pos < len(self.buffer) or not (yield from self.more()):
                break
        if self.pos == start or self.pos == len(self.buffer):
            raise Broken  # nothing, or cut off
        return self.buffer[start : self.pos]

    def until(self, literal: str, *, most: int | None = None) -> Wait[str]:
        """Read the text before the literal, and the literal."""
        start, seen = self.pos, self.pos
        while (end := self.buffer.find(literal, seen)) < 0:
            seen = max(start, len(self.buffer) - len(literal) + 1)
            if most is not None and seen - start > most:
                raise Broken
            if not (yield from self.more()):
                raise Broken
        self.pos = end + len(literal)
        return self.buffer[start:end]

    def bracketed(self) -> Wait[str]:
        """Read a JSON object or array as text, to its closing bracket."""
        yield from self.skip_space()
        if (yield from self.peek()) not in ("{", "["):
            raise Broken
        start = seen = self.pos
        depth, inside = 0, False
        while True:
            match = (_INSIDE if inside else _OUTSIDE).search(self.buffer, seen)
            if match is None or (inside and match.end() == len(self.buffer) and match[0] == "\\"):
                seen = len(self.buffer) if match is None else match.start()
                if not (yield from self.more()):
                    raise Broken
                continue
            seen, mark = match.end(), match[0]
            if mark == "\\":
                seen += 1
            elif mark == '"':
                inside = not inside
            elif mark in "{[":
                depth += 1
                if depth > MAX_DEPTH:
                    raise Broken
            else:
                depth -= 1
                if depth == 0:
                    self.pos = seen
                    return self.buffer[start:seen]

    def quoted(self) -> Wait[str]:
        """Read a JSON string as text, with its quotes."""
        start = seen = self.pos
        while True:
            seen += 1
            while seen >= len(self.buffer):
                if not (yield from self.more()):
                    raise Broken
            if self.buffer[seen] == "\\":
                seen += 1
            elif self.buffer[seen] == '"':
                self.pos = seen + 1
                return self.buffer[start : self.pos]

    def python(self) -> Wait[str]:
        """Read a Python list as text, to its closing bracket; anything else, to the end of the
        output."""
        yield from self.skip_space()
        start, depth, quote = self.pos, 0, ""
        is_list = (yield from self.peek()) == "["
        seen = start
        while True:
            if seen >= len(self.buffer):
                if (yield from self.more()):
                    continue
                if is_list:
                    raise Broken
                self.pos = len(self.buffer)
                return self.buffer[start:]
            c, seen = self.buffer[seen], seen + 1
            if quote:
                if c == "\\":
                    seen += 1
                elif c == quote:
                    quote = ""
            elif c in "\"'":
                quote = c
            elif c in "([{":
                depth += 1
            elif c in ")]}":
                depth -= 1
                if is_list and depth == 0:
                    self.pos = seen
                    return self.buffer[start:seen]

    def json(self) -> Wait[Any]:
        """Read a JSON object or array."""
        return parse_json((yield from self.bracketed()))

    def find(self, markers: Markers) -> tuple[int, str] | None:
        """Find the first of the markers in the rest; the longer one if two begin at the same
        place."""
        match = markers.pattern.search(self.buffer, self.pos)
        return (match.start(), match[0]) if match else None

    def held(self, markers: Markers) -> int:
        """Return the position from which the text may be the beginning of a marker."""
        size = len(self.buffer)
        for i in range(max(self.pos, size - markers.longest + 1), size):
            if self.buffer[i:] in markers.beginnings:
                return i
        return size

    def longest(self, markers: Markers) -> Wait[str]:
        """Read the longest of the markers that come next; one of them does."""
        for marker in markers.literals:
            if (yield from self.accept_exact(marker)):
                return marker
        raise AssertionError("a marker comes next")


class Markers:
    """Strings to look for."""

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = sorted(set(literals), key=len, reverse=True)
        self.longest = max(map(len, self.literals), default=0)
        self.beginnings = frozenset(x[:n] for x in self.literals for n in range(1, len(x)))
        self.pattern = re.compile("|".join(map(re.escape, self.literals)) or r"(?!)")


def parse_json(text: str) -> Any:
    """Parse JSON, with line breaks in strings. Raises Broken."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Broken from error


def dump_json(value: Any) -> str:
    """Write JSON as a model does. Raises Broken for what JSON cannot say."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise Broken from error
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
