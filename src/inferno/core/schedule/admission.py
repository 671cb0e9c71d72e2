"""The waiting sequences, and when the first of them may run."""

from __future__ import annotations

import heapq
from time import monotonic

from attrs import define, field

from inferno.core.kvcache import is_being_computed
from inferno.core.schedule.rows import Rows
from inferno.core.types import Sequence, Slice
from inferno.request.requests import EngineStats


@define(eq=False)
class Admission:
    """A queue by priority, then arrival. No sequence overtakes the first one."""

    rows: Rows
    stats: EngineStats
    waiting: list[tuple[int, int, Sequence]] = field(factory=list)

    def enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self.waiting, (sequence.request.priority, sequence.arrival, sequence))

    def remove(self, sequence: Sequence) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] is not sequence]
        heapq.heapify(self.waiting)

    def admit(self, slices: list[Slice], budget: int) -> list[Sequence]:
        """Admit sequences while their first slices fit, of `budget` tokens together, and append
        these: none of sequences that wait for a move. Returns the sequences."""
        admitted: list[Sequence] = []
        while budget and (sequence := self._next(budget)) is not None:
            admitted.append(sequence)
            if sequence.arriving is None:
                slices.append(self._first_slice(sequence, budget))
                budget -= slices[-1].num_tokens
        return admitted

    def _next(self, budget: int) -> Sequence | None:
        """Give the first waiting sequence a row and its cached blocks. Returns None while its first
        slice does not fit."""
        rows, groups, num_running = self.rows, self.rows.groups, len(self.rows.running)
        if not self.waiting or not rows.free or groups.available() <= num_running:
            return None  # a full prefix hit needs one more block too
        sequence = self.waiting[0][2]
        match = groups.match(sequence)
        num_cached = len(match.block_ids)
        if is_being_computed(sequence, num_cached, rows.running.values(), groups.block_size):
            return None  # a step or two later it is a prefix hit
        start = num_cached * groups.block_size
        count = min(len(sequence.token_ids) - start, budget)
        missing = groups.blocks_for(start + count) - num_cached
        # Idle hits cannot be evicted to make room. One block is left for each running sequence to
        # grow into.
        if groups.available(match.block_ids) < missing + num_running:
            return None
        heapq.heappop(self.waiting)
        rows.take(sequence, match)
        again = sequence.num_cached is not None
        self.stats.count_prompt(len(sequence.token_ids), sequence.num_computed, again=again)
        if not again:
            sequence.num_cached = sequence.num_computed
            sequence.waited = monotonic() - sequence.arrived
        return sequence

    def _first_slice(self, sequence: Sequence, budget: int) -> Slice:
        """Return the first slice of a newly admitted sequence, and acquire its blocks."""
        groups, start, pending = self.rows.groups, sequence.num_computed, sequence.num_pending
        count = groups.slice_tokens(sequence, start, min(pending, budget))
        missing = groups.blocks_for(start + count) - len(sequence.block_ids)
        self.rows.updates += groups.acquire(sequence, missing)
        samples = count == pending and sequence.request.pooling is None
        sequence.num_planned, sequence.num_unknown = start + count, int(samples)
        return Slice(sequence.held_row, start, count, samples)
