"""Draws from the best tokens under a grammar that is asked for single tokens instead of a mask.

What `top_k`, `top_p` and `min_p` keep depends on every token that the grammar allows; which token
is drawn mostly does not. The best tokens are asked for, one after another. Those not asked yet can
only add to the kept mass, at most as much as if all of them were allowed: as soon as the uniform
number means the same token at both ends, that is the token which a mask would give.

Suffixes: B rows drawn together, V vocabulary, K candidates.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from inferno.constraints import Masks
from inferno.constraints.constraint import have_bits
from inferno.ops.masses import UNDECIDED, UNIFORM_BITS, UNIT, integer_masses, relative_probabilities
from inferno.sampling.draw import Cut

_MOST_ASKED = 8
"""Tokens that a draw asks for. Beyond, a mask takes less time."""

Allows = Callable[[int], bool | None]
"""Whether the grammar allows a candidate; None: only a mask can tell."""


@frozen(eq=False)
class AskedDraws:
    """Draws of rows that are cut alike."""

    x_BV: Tensor
    """All logits; read for `total_B` only."""
    best_BK: Tensor
    """The best logits in order."""
    ids_BK: Tensor
    total_B: Tensor | None
    """The mass of all tokens, or None, as in `draw.truncate`."""
    cut: Cut
    uniform_B: Tensor
    places: Sequence[tuple[int, int]]
    """The rows of `masks`, each with the number of drafts before it."""
    masks: Masks

    def draw(self) -> Tensor:
        """Return a token id of each row, (B,), or UNDECIDED where the best tokens do not decide
        the draw."""
        drawn = self._drawn()
        unknown = [place[0] not in self.masks.known for place in self.places]
        again = [i for i, id in enumerate(drawn) if id == UNDECIDED and unknown[i]]
        if again:
            self.masks.fill({self.places[i][0] for i in again})  # together
            for i, token_id in zip(again, self._of(again)._drawn(), strict=True):
                drawn[i] = token_id
        return torch.tensor(drawn, device=self.ids_BK.device)

    def _of(self, rows: list[int]) -> AskedDraws:
        """Return those of some rows."""
        return AskedDraws(
            self.x_BV[rows] if self.total_B is not None else self.x_BV,
            self.best_BK[rows],
            self.ids_BK[rows],
            self.total_B[rows] if self.total_B is not None else None,
            self.cut.of(rows),
            self.uniform_B[rows],
            [self.places[i] for i in rows],
            self.masks,
        )

    def _drawn(self) -> list[int]:
        ids, best = self.ids_BK.cpu().numpy(), self.best_BK.float().cpu().numpy()
        complete = self.best_BK.shape[1] == self.x_BV.shape[1]
        checks = [self._allows(*each) for each in zip(self.places, ids, strict=True)]
        drawn = [UNDECIDED] * len(checks)
        firsts = {
            i: first
            for i, first in enumerate(_first_allowed(*each) for each in checks)
            # Minus infinity has no share, and none is a share of it.
            if first is not None and math.isfinite(best[i, first])
        }
        if not firsts:
            return drawn
        some = self if len(firsts) == len(drawn) else self._of([*firsts])
        for i, candidates in zip(firsts, some._candidates([*firsts.values()]), strict=True):
            index = candidates.draw(*checks[i])
            # Which of the tokens with the last value are among the candidates is not defined.
            if index is not None and (complete or best[i, index] > best[i, -1]):
                drawn[i] = int(ids[i, index])
        return drawn

    def _allows(self, place: tuple[int, int], ids_K: Any) -> tuple[Allows, int]:
        """Return what says whether a candidate is allowed, and of how many it may be asked."""
        if (mask_NW := self.masks.known.get(place[0])) is not None:
            allowed = have_bits(mask_NW[place[1]], ids_K).tolist()
            return allowed.__getitem__, len(ids_K)
        return partial(_is_allowed, self.masks, place, ids_K), min(_MOST_ASKED, len(ids_K))

    def _candidates(self, firsts: list[int]) -> list[_Candidates]:
        """Return each row's candidates, of which these are the first that are allowed."""
        best_BK, cut, total_B = self.best_BK, self.cut, self.total_B
        first_B1, first_best_B1 = np.array(firsts)[:, None], best_BK[:, :1]
        if any(firsts):
            at_B1 = torch.from_numpy(first_B1).to(best_BK.device)
            first_best_B1 = best_BK.gather(-1, at_B1)
            if total_B is not None:  # each refused one counts as much as the first allowed
                x_BV = torch.minimum(self.x_BV, first_best_B1)
                mass_BV = integer_masses(x_BV, first_best_B1, cut.temperature_B1)
                total_B = mass_BV.sum(-1) - at_B1[:, 0] * int(UNIT)
        # From here on in numpy, which takes half the time for so few numbers.
        p_BK = relative_probabilities(best_BK, first_best_B1, cut.temperature_B1).cpu().numpy()
        likely_B = (p_BK >= cut.min_p_B1.cpu().numpy()).sum(-1)
        p_BK[np.arange(p_BK.shape[1]) < first_B1] = 0
        return [
            _Candidates(*each)
            for each in zip(
                firsts,
                (p_BK * np.float32(UNIT)).astype(np.int64).cumsum(-1),
                likely_B.tolist(),
                [None] * len(firsts) if total_B is None else total_B.tolist(),
                cut.top_k_B.tolist(),
                cut.top_p_B.tolist(),
                self.uniform_B.tolist(),
                strict=True,
            )
        ]


def _is_allowed(masks: Masks, place: tuple[int, int], ids_K: Any, index: int) -> bool | None:
    return masks.allows(place[0], int(ids_K[index]), place[1])


def _first_allowed(allows: Allows, most: int) -> int | None:
    """Return the index of the first candidate that is allowed, if it is among the first ones."""
    for index in range(most):
        if (allowed := allows(index)) is not False:
            return index if allowed else None
    return None


@frozen(eq=False)
class _Candidates:
    """A row's best tokens in order, and how one is drawn."""

    first: int
    """The first one that is allowed."""
    sums: Any
    """Their cumulative masses from the first on, (K,)."""
    likely: int
    """How many of them `min_p` does not cut off."""
    total: int | None
    """The mass of all tokens from the first on; None if `top_k` is a limit."""
    top_k: int
    top_p: int
    uniform: int

    def draw(self, allows: Allows, most: int) -> int | None:
        """Return the index of the token that the uniform number means, or None."""
        sums, size = self.sums, len(self.sums)
        allowed, masses = [self.first], [int(sums[self.first])]  # cumulative masses
        for candidate in range(self.first + 1, most + 1):
            before = int(sums[candidate - 1])
            end = candidate + self.top_k - len(allowed)  # of what `top_k` may keep
            if self.total is None and end > size:
                return None
            more = (int(sums[end - 1]) if self.total is None else self.total) - before
            likely_more = more
            if self.likely < size:
                likely_more = max(0, int(sums[min(self.likely, end) - 1]) - before)
            likely = masses[bisect_left(allowed, self.likely) - 1]
            least = min(likely, self._kept(masses, masses[-1]))
            greatest = min(likely + likely_more, self._kept(masses, masses[-1] + more))
            index = bisect_right(masses, _share(self.uniform, least))
            if _share(self.uniform, greatest) < masses[index]:
                return allowed[index]
            if candidate == most or (answer := allows(candidate)) is None:
                return None
            if answer:
                allowed.append(candidate)
                masses.append(masses[-1] + int(sums[candidate]) - before)
        return None

    def _kept(self, held: Sequence[int], total: int) -> int:
        """Return the mass that `top_p` keeps of a total; all of it if the known tokens may not be
        enough."""
        enough = max(1, _share(self.top_p, total))
        return held[bisect_left(held, enough)] if enough <= held[-1] else total


def _share(part: int, whole: int) -> int:
    return (whole * part) >> UNIFORM_BITS
