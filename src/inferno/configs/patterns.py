"""Patterns that a checkpoint's config has for the paths of its modules.

A checkpoint is anyone's text, and `re` goes back and tries again: a few characters can take it for
ever. Engines of linear time cannot look ahead, as patterns of the field do. So a pattern is parsed
first, and refused if the ways in which it can match a path are too many to be tried.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from re import _parser  # type: ignore[attr-defined]  # what `re.compile` begins with
from typing import Any

from attrs import frozen

MAX_CHARACTERS = 10_000
"""Of a pattern."""
MAX_DEPTH = 100
"""Of groups in groups: how deep Python may recurse to parse them is the process's own choice."""
MAX_WAYS = 10**6
"""Some 10 ms of `re`."""


class PatternError(ValueError):
    """Why a pattern cannot be used, as the end of a sentence that names it."""


def begins_with(path: str, pattern: str) -> bool:
    """Whether the pattern matches a beginning of the path, as by `re.match`. Raises PatternError
    for a pattern that is malformed, or that could take for ever."""
    return _compiled(pattern, len(path)).match(path) is not None


@lru_cache(maxsize=512)
def _compiled(pattern: str, characters: int) -> re.Pattern[str]:
    """Return a pattern that is tried on texts of that length."""
    if len(pattern) > MAX_CHARACTERS:
        raise PatternError(f"which has more than {MAX_CHARACTERS} characters")
    if max(accumulate((c == "(") - (c == ")") for c in pattern), default=0) > MAX_DEPTH:
        raise PatternError(f"which has more than {MAX_DEPTH} groups in each other")
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"which is not a pattern: {error}") from None
    try:
        few = _sequence(parsed, characters).number(characters) <= MAX_WAYS
    except OverflowError:
        few = False
    if not few:
        raise PatternError(
            "which could take for ever to match: it repeats what repeats or has alternatives, or "
            "has too many repetitions"
        )
    return re.compile(pattern)


@frozen
class _Ways:
    """In how many ways a part of a pattern can match: `factor` for each way in which `stars`
    repetitions without limit share the characters of the text."""

    stars: int = 0
    factor: float = 1

    def number(self, characters: int) -> float:
        return self.factor * math.comb(characters + self.stars, self.stars)

    def then(self, other: _Ways) -> _Ways:
        return _Ways(self.stars + other.stars, self.factor * other.factor)


_ENDLESS = _Ways(factor=math.inf)


def _sequence(parts: Iterable[tuple[Any, Any]], characters: int) -> _Ways:
    ways = _Ways()
    for kind, value in parts:
        ways = ways.then(_ways(str(kind), value, characters))
    return ways


def _ways(kind: str, value: Any, characters: int) -> _Ways:
    """Bound the ways of one node of the parsed pattern."""
    match kind:
        case "SUBPATTERN":
            return _sequence(value[-1], characters)
        case "ATOMIC_GROUP":
            return _sequence(value, characters)
        case "ASSERT" | "ASSERT_NOT":  # looks at characters that others share too
            return _Ways(factor=_sequence(value[1], characters).number(characters))
        case "BRANCH":
            return _either([_sequence(branch, characters) for branch in value[1]])
        case "GROUPREF_EXISTS":
            branches = [branch for branch in value[1:] if branch is not None]
            return _either([_sequence(branch, characters) for branch in branches])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, body = value
            return _repeated(int(least), int(most), body, characters)
    return _Ways()


def _either(branches: list[_Ways]) -> _Ways:
    return _Ways(max(b.stars for b in branches), sum(b.factor for b in branches))


def _repeated(least: int, most: int, body: Any, characters: int) -> _Ways:
    one = _sequence(body, characters)
    if least > characters and body.getwidth()[0] == 0:
        return _ENDLESS  # of what takes no character, each is tried
    counts = most - least + 1
    if one == _Ways():
        return _Ways(stars=1) if counts > characters else _Ways(factor=counts)
    if most > characters or one.number(characters) ** most > MAX_WAYS:
        return _ENDLESS
    return _Ways(one.stars * most, counts * one.factor**most)
