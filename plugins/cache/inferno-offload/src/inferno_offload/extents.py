"""Which bytes of a file are free."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain

from attrs import define, field


@define(eq=False)
class Extents:
    """Gives out extents of one file, and takes them back. The search goes on where the last extent
    was given: parts that are saved together are neighbours, also in what others have left."""

    limit: int
    """Bytes that the file may have."""
    end: int = 0
    """After it, everything is free."""
    _starts: list[int] = field(factory=list)
    """Where free extents before `end` begin, in order. No two of them are neighbours."""
    _sizes: dict[int, int] = field(factory=dict)
    _next: int = 0

    @classmethod
    def without(cls, used: Iterable[tuple[int, int]], limit: int) -> Extents:
        """Return what is free beside these extents (offset, size), which are in order and do not
        overlap."""
        room = cls(limit)
        for offset, size in used:
            if offset > room.end:
                room._insert(len(room._starts), room.end, offset - room.end)
            room.end = room._next = offset + size
        return room

    def take(self, size: int) -> int | None:
        """Return the offset of an extent, or None if none is that large."""
        first = bisect_left(self._starts, self._next)
        for i in chain(range(first, len(self._starts)), range(first)):
            start: int = self._starts[i]
            if (left := self._sizes[start] - size) >= 0:
                self._remove(i)
                if left:
                    self._insert(i, start + size, left)
                self._next = start + size
                return start
        if self.end + size > self.limit:
            return None
        start, self.end = self.end, self.end + size
        self._next = self.end
        return start

    def give(self, offset: int, size: int) -> None:
        """Take an extent back."""
        i = bisect_left(self._starts, offset)
        if i < len(self._starts) and self._starts[i] == offset + size:
            size += self._remove(i)
        if i and (before := self._starts[i - 1]) + self._sizes[before] == offset:
            offset, size = before, size + self._remove(i - 1)
            i -= 1
        if offset + size == self.end:
            self.end = offset
        else:
            self._insert(i, offset, size)

    def _insert(self, i: int, start: int, size: int) -> None:
        self._starts.insert(i, start)
        self._sizes[start] = size

    def _remove(self, i: int) -> int:
        return self._sizes.pop(self._starts.pop(i))
