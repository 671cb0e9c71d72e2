"""The masks of one step. Most draws ask the grammar for one token first, and need a mask only if it
is refused: a greedy draw for the model's best token, then the next; a draw from all of the
vocabulary for the token that it draws without a mask (`sampling.groups`); one with `top_k` or
`top_p` for the best tokens, until they decide it (`sampling.asked`). What `min_p` alone keeps is
drawn in the order of ids, not from the best: such masks are computed in a thread, while the model
runs.

Suffixes: M masks, W words of 32 tokens, N a row's next token and drafts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
from attrs import define, field

from inferno.constraints.constraint import Constraint, Mask, has_bit
from inferno.constraints.grammar_time import SLOW
from inferno.contracts import GrammarCompiler, MaskRequest
from inferno.request.sampling_params import SamplingParams


def asks_first(params: SamplingParams) -> bool:
    """Whether a request's draws can ask for single tokens before they need a mask."""
    return params.greedy or params.top_k > 0 or params.top_p < 1 or params.min_p <= 0


def is_watched(constraint: Constraint) -> bool:
    """Whether the masks of a request are computed alone, and without drafts."""
    return constraint.time is not None and constraint.time.is_watched


Drafts = Mapping[int, Sequence[int]]
"""Draft tokens by row."""


@define(eq=False)
class Masks:
    """Which tokens a step's rows may draw. A row without a constraint or a mask may draw any."""

    constraints: Mapping[int, Constraint] = field(factory=dict)
    """By row."""
    words: int = 0
    drafts: Drafts = field(factory=dict)
    """Those that the step verifies; the constraints allow them."""
    known: dict[int, Mask] = field(factory=dict)
    """The masks that are computed, by row."""
    asking: Collection[int] = ()
    """Rows whose draws ask for a token before they need a mask (`asks_first`)."""

    def __bool__(self) -> bool:
        return bool(self.constraints or self.known)

    def allows(self, row: int, token_id: int, at: int = 0) -> bool | None:
        """Return whether a row may draw a token, or may after `at` drafts. If no mask says so, the
        constraint is asked for this token alone, in a tenth of the time of a mask. None: only a
        mask can tell."""
        if (mask_NW := self.known.get(row)) is not None:
            return has_bit(mask_NW[at], token_id)
        if (constraint := self.constraints.get(row)) is None:
            return True
        return None if at else constraint.allows(token_id)

    def allow(self, places: Sequence[tuple[int, int]], token_ids: Sequence[int]) -> list[bool]:
        """Return whether each token is allowed in its place, a row and the number of drafts before
        it. Computes the masks without which that is not known."""
        queries = list(zip(places, token_ids, strict=True))
        answers = [self.allows(row, token_id, at) for (row, at), token_id in queries]
        self.fill({row for (row, _), each in zip(places, answers, strict=True) if each is None})
        return [
            bool(self.allows(row, token_id, at) if answer is None else answer)
            for ((row, at), token_id), answer in zip(queries, answers, strict=True)
        ]

    def of(self, row: int, at: int = 0) -> Mask | None:
        """Return a row's mask (W,), or the one after `at` drafts; None if it has no constraint."""
        if row in self.constraints:
            self.fill((row,))
        mask_NW = self.known.get(row)
        return None if mask_NW is None else mask_NW[at]

    def fill(self, rows: Collection[int]) -> None:
        """Compute the masks of these rows that are not known yet. Other rows are left out."""
        missing = [r for r in self.constraints if r in rows and r not in self.known]
        if not missing:
            return
        counts = [1 + len(self.drafts.get(row, ())) for row in missing]
        masks_MW = np.zeros((sum(counts), self.words), np.int32)
        requests: dict[int, tuple[GrammarCompiler, dict[int, MaskRequest]]] = {}
        first = 0
        for row, count in zip(missing, counts, strict=True):
            constraint = self.constraints[row]
            self.known[row] = mask_NW = masks_MW[first : first + count]
            request = constraint.fill(self.drafts.get(row, ()), mask_NW)
            if request is not None:
                compiler = constraint.compiler
                assert compiler is not None, "a constraint that asks for masks has a compiler"
                _, by_row = requests.setdefault(id(compiler), (compiler, {}))
                by_row[row] = request._replace(index=first)
            first += count
        for compiler, by_row in requests.values():
            alone = [row for row in by_row if is_watched(self.constraints[row])]
            for rows in [[row] for row in alone] + [[row for row in by_row if row not in alone]]:
                self._compute(compiler, {row: by_row[row] for row in rows}, masks_MW)
        for row in missing:
            self.constraints[row].finish_fill(self.known[row])

    def _compute(
        self, compiler: GrammarCompiler, asked: Mapping[int, MaskRequest], masks_MW: Mask
    ) -> None:
        """Let a compiler fill the masks of rows, and count the time that each takes: in a batch,
        which may be computed in other threads, nobody knows whose masks are slow."""
        constraints = [self.constraints[row] for row in asked]
        times = [each.time for each in constraints if each.time is not None]
        clock = times[0].clock if len(times) == 1 else perf_counter
        began = clock()
        try:
            compiler.fill(list(asked.values()), masks_MW)
        except Exception as error:  # a provider's fault ends its requests, not the engine
            for constraint in constraints:
                constraint.fail(f"no mask was computed: {type(error).__name__}: {error}")
        seconds = (clock() - began) / max(1, len(times))
        for time in times:
            time.is_watched = seconds > SLOW
            if len(times) == 1:
                time.add(seconds)


NO_MASKS = Masks()


@define(eq=False)
class MaskJob:
    """Computes the masks of one step."""

    rows: Mapping[int, Constraint]
    words: int
    asking: Collection[int]
    """Rows whose draws ask for a token before they need a mask (`asks_first`)."""
    pool: ThreadPoolExecutor | None
    """Computes the masks that are needed from the start beside the step; None: after it."""
    looks: bool
    """Whether the rows that ask can wait for their masks."""
    _masks: Masks = field(factory=Masks)
    _begun: Future[Any] | None = None

    def begin(self, drafts: Drafts) -> Drafts:
        """Return the step's drafts without those that a constraint forbids, and begin the masks if
        they are computed beside the step."""
        prefixes = {}
        for row, ids in drafts.items():
            constraint = self.rows.get(row)
            if constraint is None:
                prefixes[row] = ids
            elif not is_watched(constraint):
                prefixes[row] = ids[: constraint.count_valid(ids)]
        drafts = {row: ids for row, ids in prefixes.items() if ids}
        self._masks = Masks(self.rows, self.words, drafts, asking=self.asking)
        if self.pool is not None and (wanted := self._wanted()):
            self._begun = self.pool.submit(self._masks.fill, wanted)
        return drafts

    def _wanted(self) -> list[int]:
        """Return the rows that need their masks from the start. After drafts a constraint is not
        asked for single tokens."""
        drafts = self._masks.drafts
        later = self.asking if self.looks else ()
        return [row for row in self.rows if row not in later or row in drafts]

    def result(self) -> Masks:
        """Return the masks, once those that are needed from the start are computed."""
        if self._begun is not None:
            self._begun.result()
        elif self.pool is None:
            self._masks.fill(self._wanted())
        return self._masks
