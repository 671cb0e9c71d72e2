"""Learns what steps cost from the seconds that earlier ones took.

A step's seconds are close to a sum of three parts: one that every step has (the weights are read,
operators are called), one for each token (products with the weights), and one for each pair of a
token and one before it (attention). `StepCost` fits the three by least squares, and never below 0.
Errors count relative to the seconds measured, so that a step that a busy machine or a capture made
ten times as long counts for a hundredth, and older steps count less and less.

No clock is read here: who has measured a step records it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from attrs import define, field

_DECAY = 0.9
"""What a recorded step counts for when the next one is."""
_SCALES = 1.0, 1e3, 1e6
"""Units of the three parts, of like size so that the equations can be solved."""
_PARTS = (1,), (0, 1), (1, 2), (0, 1, 2), (0,), (0, 2), (2,)
"""Parts that may explain the times, the simplest first: a few steps are explained by any."""
_BETTER = 1e-6
"""How much smaller the mean squared error must be for another set of parts."""


class Work(NamedTuple):
    """What a step computes."""

    tokens: int = 0
    pairs: float = 0.0
    """Pairs of a token and one that it attends to, if no window limits them."""

    def plus(self, start: int, count: int) -> Work:
        """Return it with `count` tokens more, of a sequence that has `start` tokens before them."""
        return Work(self.tokens + count, self.pairs + count * (start + count / 2))


@define(eq=False)
class StepCost:
    """The cost of steps of one kind."""

    num_recorded: int = 0
    _sums: list[float] = field(factory=lambda: [0.0] * 9)
    """Of the products of two parts, (0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2), then of the
    parts, of which each is relative to the step's seconds."""
    _weight: float = 0.0
    _largest: float = 0.0
    _fitted: tuple[float, float, float] | None = None

    def record(self, work: Work, seconds: float) -> None:
        """Learn that a step took so long."""
        if not 0 < seconds < math.inf:
            return
        _, for_tokens, for_pairs = _SCALES
        x, y = 1 / seconds, work.tokens / (seconds * for_tokens)
        z = work.pairs / (seconds * for_pairs)
        xx, xy, xz, yy, yz, zz, sum_x, sum_y, sum_z = self._sums
        # Written out, as every step does this: a loop over pairs took 2.3 us instead of 0.9.
        self._sums = [
            _DECAY * xx + x * x,
            _DECAY * xy + x * y,
            _DECAY * xz + x * z,
            _DECAY * yy + y * y,
            _DECAY * yz + y * z,
            _DECAY * zz + z * z,
            _DECAY * sum_x + x,
            _DECAY * sum_y + y,
            _DECAY * sum_z + z,
        ]
        self._weight = _DECAY * self._weight + 1
        self._largest = max(_DECAY * self._largest, work.tokens)
        self._fitted = None
        self.num_recorded += 1

    def seconds(self, work: Work) -> float | None:
        """Return what a step should take; None if none was recorded."""
        if not self.num_recorded:
            return None
        once, token, pair = self._fit()
        return once + token * work.tokens + pair * work.pairs

    @property
    def token_seconds(self) -> float:
        """What one token more takes, without those before it; 0 if that is not known."""
        return self._fit()[1] if self.num_recorded else 0.0

    def tokens(self, seconds: float, start: int) -> int:
        """Return how many tokens of a sequence that has `start` tokens before them are computed in
        so many seconds, in a step that is run anyway. At most four times as many as a recent step
        had, beyond which nothing is known."""
        _, token, pair = self._fit()
        first, most = token + pair * start, math.ceil(4 * self._largest)
        if seconds <= 0:
            return 0
        root = first + math.sqrt(first * first + 2 * pair * seconds)
        return most if root <= 0 else min(most, int(2 * seconds / root))

    def even_tokens(self, start: int) -> int:
        """Return how many tokens of such a sequence take as long as a step without any."""
        once, token, pair = self._fit()
        each, most = token + pair * start, math.ceil(4 * self._largest)
        return most if each <= 0 else min(most, int(once / each))

    def _fit(self) -> tuple[float, float, float]:
        """Return the seconds of each part. Another thread may ask while a step is recorded."""
        if (fitted := self._fitted) is None:
            best, least = [0.0] * 3, math.inf
            xx, xy, xz, yy, yz, zz, *means = self._sums
            sums = (xx, xy, xz), (xy, yy, yz), (xz, yz, zz)
            for parts in _PARTS:
                costs = _solve(sums, means, parts)
                if costs is None or min(costs) < 0:
                    continue
                error = self._error(sums, means, costs)
                if error < least - _BETTER:
                    best, least = costs, error
            once, token, pair = (c / s for c, s in zip(best, _SCALES, strict=True))
            self._fitted = fitted = once, token, pair
        return fitted

    def _error(
        self, sums: Sequence[Sequence[float]], means: Sequence[float], costs: Sequence[float]
    ) -> float:
        """Return the mean squared relative error with these costs."""
        fit = sum(m * c for m, c in zip(means, costs, strict=True))
        square = sum(
            a * c * d
            for row, c in zip(sums, costs, strict=True)
            for a, d in zip(row, costs, strict=True)
        )
        return (self._weight - 2 * fit + square) / self._weight


def _solve(
    sums: Sequence[Sequence[float]], means: Sequence[float], parts: Sequence[int]
) -> list[float] | None:
    """Solve the equations of these parts, the others being 0. None if they have many solutions."""
    rows = [[*(sums[i][j] for j in parts), means[i]] for i in parts]
    size = len(parts)
    for k in range(size):
        pivot = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        if abs(rows[k][k]) <= 1e-9 * sums[parts[k]][parts[k]]:
            return None
        for i in range(size):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    solution = [0.0] * 3
    for k, part in enumerate(parts):
        solution[part] = rows[k][size] / rows[k][k]
    return solution
