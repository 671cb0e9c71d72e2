"""Decides how many draft tokens a request's next step verifies, for speculative decoding.

A step that verifies k drafts computes k tokens more. If each draft is accepted with probability p,
it returns (1 - p^(k+1)) / (1 - p) tokens on average (Leviathan, Kalman, Matias 2023,
arXiv:2211.17192). `Acceptance` estimates p for one request and chooses the k with the most tokens
per unit of time, none if no k pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from attrs import define, frozen

_STEPS = 64
"""Estimates are rounded to this many values, so that `_best_count` can be cached."""
_DECAY = 0.9
MOST_SUGGESTED = 8
"""The most drafts that the engine suggests for one step of one sequence."""
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024
"""Tokens without drafts after none paid. The pause doubles each time."""

_MOST_MISSES, _MISSES_PAUSE = 4, 8
"""After this many steps without a proposal, no slots for drafts for this many tokens."""


@frozen
class DraftCost:
    """What drafts cost, in units of a step with one token."""

    most: int
    """The most drafts in one step of one sequence."""
    verify: float = 0.1
    """Cost of computing one more token in a step. On a CPU it is measured."""
    propose: float = 0.0
    """Cost of proposing one draft."""

    def per_draft(self, num_running: int) -> float:
        """Return the cost of one draft for each of `num_running` sequences, relative to the step
        without drafts: with many sequences, a step's time grows with its tokens."""
        step = 1 + self.verify * (num_running - 1)
        return (self.verify * num_running + self.propose) / step


@lru_cache
def draft_counts(most: int) -> tuple[int, ...]:
    """Return the numbers of drafts that a step may verify, ascending, the last one `most`. They are
    few, because a step of another number of tokens is captured anew, and that takes as long as 20
    steps of a small model."""
    powers = (2**i - 1 for i in range(1, most.bit_length()))
    return (*(count for count in powers if 2 * count <= most), most)


def at_most(limit: int, most: int) -> int:
    """Return the largest of `draft_counts(most)` that is at most `limit`, or 0."""
    return max((count for count in draft_counts(most) if count <= limit), default=0)


def verify_cost(seconds: Callable[[int], float], most: int) -> float | None:
    """Return `DraftCost.verify`, measured. `seconds` runs a step of so many tokens and returns its
    time, or infinity if it cannot. A step of one token and one of `most` drafts take turns, five
    times or for a quarter of a second; the shortest times count. At most 0.45, with which drafts
    that did not pay are still tried again."""
    times: list[tuple[float, float]] = []
    while len(times) < 5 and sum(map(sum, times)) < 0.25:
        times.append((seconds(1), seconds(1 + most)))
    one, more = (min(each) for each in zip(*times, strict=True))
    return min(max(0.01, (more / one - 1) / most), 0.45) if more < math.inf else None


@define(eq=False)
class Acceptance:
    """One request's estimate of how likely its next draft is accepted."""

    _accepted: float = 0.7
    _tested: float = 1.0
    """Decaying counts, which begin at 70 %. Drafts after a rejected one do not count."""
    _pause: int = 0
    """Tokens left until drafts are tried again."""
    _next_pause: int = _FIRST_PAUSE
    _misses: int = 0
    """Steps in a row for which nothing was proposed."""

    @property
    def probability(self) -> float:
        return self._accepted / self._tested

    def best(self, cost: DraftCost, num_running: int) -> int:
        """Return the number of drafts that pays most: 0 if none pays, or in a pause."""
        if self._pause > 0:
            return 0
        relative = round(cost.per_draft(num_running) * _STEPS)
        return _best_count(round(self.probability * _STEPS), relative, cost.most)

    def count(self, cost: DraftCost, num_running: int) -> int:
        """Return how many drafts the next step should verify. If none pays, drafts are tried again
        after a pause."""
        count = self.best(cost, num_running)
        if count > 0 or self._pause > 0:
            return count
        # In a batch too large for any draft, the estimate is kept for a smaller one.
        if Acceptance().best(cost, num_running) > 0:
            self._pause, self._next_pause = (
                self._next_pause,
                min(2 * self._next_pause, _LONGEST_PAUSE),
            )
            self._accepted, self._tested = 0.3, 0.6  # one draft decides the next attempt
        return count

    def update(self, num_drafts: int, num_accepted: int, *, wanted: bool = False) -> None:
        """Record the outcome of one step. `wanted`: whether the step had slots for drafts."""
        self._pause = max(0, self._pause - 1 - num_accepted)
        if num_drafts == 0:
            self._misses += wanted
            if self._misses == _MOST_MISSES:
                self._misses, self._pause = 0, _MISSES_PAUSE
            return
        self._misses = 0
        tested = min(num_drafts, num_accepted + 1)
        self._accepted = self._accepted * _DECAY + num_accepted
        self._tested = self._tested * _DECAY + tested
        if num_accepted == num_drafts:
            self._next_pause = _FIRST_PAUSE


@lru_cache(maxsize=4096)
def _best_count(probability: int, cost: int, most: int) -> int:
    """Return the number of drafts, of those that a step may verify, with the most tokens per unit
    of time. `probability` and `cost` are in units of 1 / _STEPS."""
    p, c = probability / _STEPS, cost / _STEPS
    best, best_rate = 0, 1.0
    for count in draft_counts(most):
        tokens = sum(p**i for i in range(count + 1))
        if (rate := tokens / (1 + c * count)) > best_rate:
            best, best_rate = count, rate
    return best
