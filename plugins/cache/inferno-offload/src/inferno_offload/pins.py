"""Blocks that make room last, each until the last of its pins ends."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Sequence

from attrs import define, field


@define(eq=False)
class Pins:
    """The pins of each owner, which end together. Setting them costs what is pinned, looking one up
    nothing, however many there are."""

    counts: Counter[bytes] = field(factory=Counter, init=False)
    """By key, how many owners pin it."""
    _of: dict[str, tuple[float, Sequence[bytes]]] = field(factory=dict, init=False)
    _ends: list[tuple[float, str]] = field(factory=list, init=False)
    """A heap by time, with entries of pins that were set again or ended since."""

    def set(self, owner: str, keys: Sequence[bytes], until: float) -> None:
        """Pin an owner's keys, and those that it had before no longer."""
        self.counts.update(keys)
        self.end(owner)
        self._of[owner] = until, keys
        heapq.heappush(self._ends, (until, owner))
        if len(self._ends) > 2 * len(self._of) + 64:
            self._ends = [(until, owner) for owner, (until, _) in self._of.items()]
            heapq.heapify(self._ends)

    def end(self, owner: str) -> None:
        """End an owner's pins."""
        _, keys = self._of.pop(owner, (0.0, ()))
        for key in keys:
            self.counts[key] -= 1
            if not self.counts[key]:
                del self.counts[key]

    def expire(self) -> None:
        """End the pins whose time is over."""
        now = time.time()
        while self._ends and self._ends[0][0] <= now:
            until, owner = heapq.heappop(self._ends)
            if owner in self._of and self._of[owner][0] <= now:
                self.end(owner)
