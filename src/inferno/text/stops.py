"""Finds stop strings in a stream of characters (Aho and Corasick), in time that does not depend on
their number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from attrs import frozen


@frozen(eq=False)
class StopStrings:
    """An automaton whose states are the prefixes of the strings. State 0 is the empty one."""

    next: tuple[dict[str, int], ...]
    """Per state: the state of the prefix that is longer by this character."""
    shorter: tuple[int, ...]
    """Per state: the longest other prefix that the prefix ends with."""
    found: tuple[str | None, ...]
    """Per state: the longest of the strings that the prefix ends with."""
    length: tuple[int, ...]
    """Per state: the prefix's length."""

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, strings: tuple[str, ...]) -> StopStrings:
        """Make the automaton of these strings. The outputs of a request share it."""
        following: list[dict[str, int]] = [{}]
        found: list[str | None] = [None]
        length = [0]
        for string in strings:
            state = 0
            for char in string:
                if char not in following[state]:
                    following[state][char] = len(following)
                    length.append(length[state] + 1)
                    following.append({})
                    found.append(None)
                state = following[state][char]
            found[state] = string
        shorter = [0] * len(following)
        waiting = deque(following[0].values())
        while waiting:
            state = waiting.popleft()
            found[state] = found[state] or found[shorter[state]]
            for char, longer in following[state].items():
                shorter[longer] = _follow(following, shorter, shorter[state], char)
                waiting.append(longer)
        return cls(tuple(following), tuple(shorter), tuple(found), tuple(length))

    def follow(self, state: int, char: str) -> int:
        """Return the state after one more character: the longest prefix that the text ends with."""
        return _follow(self.next, self.shorter, state, char)


def _follow(
    following: Sequence[dict[str, int]], shorter: Sequence[int], state: int, char: str
) -> int:
    while state and char not in following[state]:
        state = shorter[state]
    return following[state].get(char, 0)
