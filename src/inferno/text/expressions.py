"""Whether a regular expression takes time in proportion to a text, as far as its form shows.

A library that goes back searches from each position anew: `\\s+$` reads a run of spaces to its end
from each of its spaces. What usual tokenizers have is shown to be proportionate, by a rule for each
alternative, in which C and D are single characters:

- nothing in it repeats without end, and it matches in few ways, or
- it has C+ or C*, and nothing after that can fail: the match is as long as what was read, or
- it has C* or C+ and then D, which may fail after a long run. What was read in vain is read once
  if the next alternative matches it: the same, with C+ and nothing after it that can fail.

Everything else counts as disproportionate, also what is only unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import evolve, frozen

_QUANTIFIER = re.compile(r"[*+?][+?]?|\{(?=,?\d)(\d*)(,?)(\d*)\}")
_OPENING = re.compile(r"\((?:\?(?:[im]*:|=|!|<=|<!))?")
_FLAGS = re.compile(r"\(\?[im]+\)")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}"
    r"|[dDwWsShHnrtfvaebBAzZG]|[^0-9A-Za-z])"
)
_NAMED_CLASS = re.compile(r"\[:\^?\w+:\]")
_ANCHORS = frozenset("^$") | {"\\" + letter for letter in "bBAzZG"}
_NOT_BEFORE_TEXT = r"(?!\S)"
_MOST_WAYS = 500
"""In how many ways what does not repeat without end may match at one position."""
_DEEPEST = 20
_LONGEST = 20_000
"""Characters of an expression."""


@frozen
class _Item:
    """A part of an alternative and how often it may come."""

    text: str
    least: int = 1
    most: int | None = 1
    """None: without end."""
    ways: int = 1
    """In how many ways it matches once, at most."""
    is_character: bool = True


_SPACES = _Item(r"\s", least=1, most=None)


class _UnknownError(Exception):
    """The expression has something that is not judged here."""


def is_proportionate(expression: str) -> bool:
    """Whether finding all matches takes time in proportion to the text's length. False if that is
    not known."""
    if len(expression) > _LONGEST:
        return False
    try:
        alternatives, end = _alternatives(expression, 0, 0)
    except _UnknownError:
        return False
    ways = sum(_ways([item for item in each if item.most is not None]) for each in alternatives)
    return (
        end == len(expression)
        and ways <= _MOST_WAYS
        and all(
            _is_fine(each, following)
            for each, following in zip(alternatives, [*alternatives[1:], []], strict=True)
        )
    )


def _is_fine(items: Sequence[_Item], following: Sequence[_Item]) -> bool:
    """Whether an alternative takes no longer than what it matches, or the next one, is long."""
    if any(item.most is None and not item.is_character for item in items):
        return False
    first = next((i for i, item in enumerate(items) if item.most is None), len(items))
    before, rest = items[:first], items[first:]
    if _takes_its_run(rest):
        return True
    if not (rest[1].is_character and rest[1].least == 1 and _never_fails(rest[2:])):
        return False
    again = following[first:]
    return (
        following[:first] == before
        and _takes_its_run(again)
        and bool(again)
        and (again[0].text, again[0].most) == (rest[0].text, None)
        and again[0].least <= 1
    )


def _takes_its_run(items: Sequence[_Item]) -> bool:
    """Whether what begins with a run of characters matches all of it, or all but the last."""
    after = items[1:]
    gives_back_one = items[:1] == [_SPACES] and [item.text for item in after] == [_NOT_BEFORE_TEXT]
    return gives_back_one or _never_fails(after)


def _never_fails(items: Sequence[_Item]) -> bool:
    return all(item.least == 0 for item in items)


def _ways(items: Sequence[_Item]) -> int:
    """In how many ways items match, at most; none of them repeats without end."""
    ways = 1
    for item in items:
        assert item.most is not None, "they are bounded"
        longest = min(item.most, _MOST_WAYS + 1)
        once = longest if item.is_character else max(item.ways, 2) ** longest
        ways = min(ways * max(1, once) * (2 if item.least < longest else 1), _MOST_WAYS + 1)
    return ways


def _alternatives(text: str, at: int, depth: int) -> tuple[list[list[_Item]], int]:
    """Read alternatives up to the end, or to a bracket that closes them. Returns where that is."""
    if depth > _DEEPEST:
        raise _UnknownError
    alternatives: list[list[_Item]] = [[]]
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            alternatives.append([])
            at += 1
            continue
        if at == 0 and (flags := _FLAGS.match(text)):  # elsewhere they enclose what follows
            at = flags.end()
            continue
        item, at = _item(text, at, depth)
        alternatives[-1].append(item)
    return alternatives, at


def _item(text: str, at: int, depth: int) -> tuple[_Item, int]:
    start = at
    if text[at] == "(":
        item, at = _group(text, at, depth)
    else:
        at = _after_character(text, at)
        word = text[start:at]
        item = _Item(word, least=1, is_character=word not in _ANCHORS)
    quantifier = _QUANTIFIER.match(text, at)
    if quantifier is None:
        return item, at
    at = quantifier.end()
    if at < len(text) and text[at] in "*+?{":  # a repeated repetition
        raise _UnknownError
    sign = quantifier[0]
    if sign in ("*?", "+?"):  # as short as possible: other rules hold
        raise _UnknownError
    if sign[0] != "{":
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign[0]]
    else:
        least = int(quantifier[1] or 0)
        most = int(quantifier[3]) if quantifier[3] else None if quantifier[2] else least
    kept = "+" if sign.endswith("+") and len(sign) == 2 else ""  # nothing is given back
    return evolve(item, text=item.text + kept, least=least, most=most), at


def _group(text: str, at: int, depth: int) -> tuple[_Item, int]:
    opening = _OPENING.match(text, at)
    assert opening is not None, "there is a bracket"
    if opening[0] == "(" and text.startswith("(?", at):
        raise _UnknownError
    inner, end = _alternatives(text, opening.end(), depth + 1)
    if end == len(text):
        raise _UnknownError
    if any(item.most is None for each in inner for item in each):
        raise _UnknownError
    ways = min(sum(map(_ways, inner)), _MOST_WAYS + 1)
    return _Item(text[at : end + 1], ways=ways, is_character=False), end + 1


def _after_character(text: str, at: int) -> int:
    """Where a character, a class of characters, or an anchor ends."""
    if text[at] == "\\":
        escape = _ESCAPE.match(text, at)
        if escape is None:
            raise _UnknownError
        return escape.end()
    if text[at] != "[":
        if text[at] in "*+?":
            raise _UnknownError
        return at + 1
    depth = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif named := _NAMED_CLASS.match(text, at):
            at = named.end() - 1
        elif text[at] == "[":
            if text.startswith(("[]", "[^]", "[:"), at):  # a bracket that may mean itself
                raise _UnknownError
            depth += 1
        elif text[at] == "]":
            depth -= 1
        at += 1
        if not depth:
            return at
    raise _UnknownError
