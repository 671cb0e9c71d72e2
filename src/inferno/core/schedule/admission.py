"""The waiting sequences, and when the first of them may run."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from time import monotonic

from attrs import define, field

from inferno.contracts import Queue
from inferno.core.kvcache import Match, is_being_computed, needs_prompt
from inferno.core.schedule.rows import Rows
from inferno.core.types import Sequence, Slice, Step
from inferno.plan.step_budget import StepBudget
from inferno.request.requests import EngineStats
from inferno.stores import NoStore

MOST_OVERTAKING = 256
"""Requests with adapters may overtake one whose adapter has no slot if they arrived at most so many
requests after it: slots that are in use must become free some time."""


@define(eq=False)
class Admission:
    """No sequence overtakes the first one of the queue, but those whose adapters have no slot wait
    beside it."""

    rows: Rows
    stats: EngineStats
    steps: StepBudget
    queue: Queue[Sequence]
    without_slot: list[Sequence] = field(factory=list)

    def remove(self, sequence: Sequence) -> None:
        self.without_slot = [each for each in self.without_slot if each is not sequence]
        self.queue.remove(sequence)
        self.rows.store.release(sequence.request.id)

    def change_store(self, store: NoStore) -> None:
        """Forget what is cached, in memory and by the store, and use another store. No sequence may
        run. Those that waited for the old one wait in the queue."""
        for sequence in list(self.rows.store.fetching.values()):
            self.rows.store.release(sequence.request.id)
            self.queue.push(sequence)
        self.rows.groups.reset()
        self.rows.store = store

    @property
    def num_waiting(self) -> int:
        return len(self.queue) + len(self.without_slot) + len(self.rows.store.fetching)

    def has_room(self) -> bool:
        """Whether there is a row for the first sequence, and blocks for its first slice if nothing
        of it is cached."""
        groups, first = self.rows.groups, self.queue.first()
        count = 0 if first is None else min(len(first.token_ids), self.steps.max_tokens)
        running = len(self.rows.running)
        return bool(self.rows.free) and groups.available() > running + groups.blocks_for(count)

    def computed(self, step: Step, members: SequenceOf[Sequence | None], seconds: float) -> None:
        """Learn how long a step took that these sequences were in."""
        work, alone = step.work
        self.steps.record(work, seconds, alone=alone)
        self.queue.computed(zip(members, (s.num_tokens for s in step.slices), strict=True), seconds)

    def gauge(self) -> EngineStats:
        """Return the stats with what there is now: when they are read, not in every step."""
        stats, rows = self.stats, self.rows
        stats.num_running, stats.num_waiting = len(rows.running), self.num_waiting
        stats.kv_usage = rows.groups.usage
        rows.store.gauge(stats)
        return self.steps.gauge(stats)

    def admit(self, slices: list[Slice], budget: int) -> list[Sequence]:
        """Admit sequences while their first slices fit, of `budget` tokens together, and append
        these: none of sequences that wait for a move. Returns the sequences."""
        for come in self.rows.store.come():
            self.queue.push(come)
        admitted: list[Sequence] = []
        if self.rows.adapters.freed and self.without_slot:
            for sequence in self.without_slot:
                self.queue.push(sequence)
            self.without_slot.clear()
        self.rows.adapters.freed = False
        while budget and self.rows.free and len(self.queue):
            fitting = self.steps.admitting(budget)
            if not fitting or (taken := self._next(fitting, streams=bool(slices))) is None:
                break
            admitted.append(taken)
            if taken.arriving is None:
                slices.append(self._first_slice(taken, fitting))
                budget -= slices[-1].num_tokens
            elif slices and taken.num_stored:
                break  # streams do not wait until many prompts' blocks have places
        return admitted

    def _next(self, budget: int, *, streams: bool) -> Sequence | None:
        """Give the first waiting sequence a row and its cached blocks. Returns None while its first
        slice does not fit, or, if the step has `streams`, once one is set aside."""
        rows, groups, running = self.rows, self.rows.groups, self.rows.running
        while rows.free and groups.available() > len(running):  # a full hit needs a block too
            if (sequence := self.queue.first()) is None:
                return None
            if self._lacks_slot(sequence):
                self.queue.pop()
                self.without_slot.append(sequence)
                continue
            match = groups.match(sequence)
            if is_being_computed(sequence, match.num_cached, running.values(), groups.block_size):
                return None  # a step or two later it is a prefix hit
            whole = match if needs_prompt(sequence) else rows.store.extended(sequence, match)
            if whole is None:
                self.queue.pop()  # it comes back, and others overtake it
                if streams:  # a long prompt's parts take milliseconds to ask for
                    return None
                continue
            # A loaded prefix needs all its blocks at once, a computed one only its first slice's:
            # without room for what the store has, the shorter match may still fit.
            if self._fits(sequence, whole, budget):
                match = whole
            elif not self._fits(sequence, match, budget):
                return None
            self.queue.pop()
            self._take(sequence, match)
            return sequence
        return None

    def _fits(self, sequence: Sequence, match: Match, budget: int) -> bool:
        """Whether there are blocks for what a sequence resumes after and its first slice."""
        groups, start = self.rows.groups, match.num_blocks * self.rows.groups.block_size
        pending = len(sequence.token_ids) - start
        count = self.steps.within(min(pending, budget), start, sequence.request.images)
        if count < pending and (groups.whole_prompts or not count):
            return False
        missing = groups.blocks_for(start + count) - match.num_cached
        # Idle hits cannot be evicted to make room. One block is left for each running sequence to
        # grow into.
        return groups.available(match.known[: match.num_blocks]) >= missing + len(self.rows.running)

    def _take(self, sequence: Sequence, match: Match) -> None:
        self.rows.take(sequence, match)
        again = sequence.num_cached is not None
        counted = again or sequence.request.is_copy
        self.stats.count_prompt(len(sequence.token_ids), sequence.num_computed, again=counted)
        if not again:
            sequence.num_cached = sequence.num_computed
            loaded = match.num_blocks - match.num_cached
            sequence.num_stored = loaded * self.rows.groups.block_size
            sequence.waited = monotonic() - sequence.arrived

    def _lacks_slot(self, sequence: Sequence) -> bool:
        """Whether a sequence must wait for the slot of its adapter, or let others have theirs."""
        if not (digest := sequence.request.content[0]):
            return False
        oldest = min((each.arrival for each in self.without_slot), default=sequence.arrival)
        overtakes = sequence.arrival - oldest > MOST_OVERTAKING
        return overtakes or not self.rows.adapters.has_room(digest)

    def _first_slice(self, sequence: Sequence, budget: int) -> Slice:
        """Return the first slice of a newly admitted sequence, and acquire its blocks."""
        groups, start, pending = self.rows.groups, sequence.num_computed, sequence.num_pending
        images = sequence.request.images
        most = max(1, self.steps.give(min(pending, budget), start, images))
        count = groups.slice_tokens(sequence, start, most)
        missing = groups.blocks_for(start + count) - len(sequence.block_ids)
        self.rows.updates += groups.acquire(sequence, missing)
        samples = count == pending and sequence.draws
        sequence.num_planned, sequence.num_unknown = start + count, int(samples)
        return Slice(sequence.held_row, start, count, samples)
