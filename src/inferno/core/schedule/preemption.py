"""Blocks for running sequences when there are too few: the least urgent ones give theirs back."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attrs import frozen

from inferno.core.schedule.admission import Admission
from inferno.core.schedule.rows import Rows
from inferno.core.types import Sequence


@frozen(eq=False)
class Preemption:
    """Takes rows and blocks from sequences, which then wait again."""

    rows: Rows
    admission: Admission

    def turns(self, resting: Collection[str]) -> Iterator[list[Sequence]]:
        """Yield the running sequences that take part in the step, without those of the `resting`
        requests; then, in case that the step is empty with them, all that may."""
        rows, queue = self.rows, self.admission.queue
        while len(queue) and not self.admission.has_room():
            if (victim := queue.displaced([*rows.running.values()])) is None:
                break
            self.preempt(victim)
        running = [*rows.running.values()]
        running = [s for s in running if s.request.id not in resting] if resting else running
        for everyone in (False, True):
            rows.turn = [*queue.turn(running, everyone=everyone)]
            yield rows.turn
            running = [s for s in running if s.row is not None]

    def extend(self, sequence: Sequence, num_tokens: int) -> Sequence | None:
        """Acquire blocks for `num_tokens` tokens. Preempts the least urgent sequences while there
        are too few; returns the last one preempted, which may be `sequence` itself."""
        rows, groups = self.rows, self.rows.groups
        missing = groups.blocks_for(num_tokens) - len(sequence.block_ids)
        victim: Sequence | None = None
        while groups.available() < missing:
            victim = self.admission.queue.victim(rows.running.values())
            self.preempt(victim)
            if victim is sequence:
                return victim
        rows.updates += groups.acquire(sequence, missing)
        return victim

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's row and blocks and queue it again. Later its tokens are found in the
        prefix cache or recomputed."""
        self.rows.vacate(sequence, resumes=True)
        sequence.num_computed = sequence.num_planned = sequence.num_unknown = 0
        self.admission.queue.push(sequence)
        self.admission.stats.preemptions += 1

    def preempt_all(self) -> None:
        """Preempt every sequence, and forget the steps in flight: their results will not come."""
        rows = self.rows
        for sequence in list(rows.running.values()):
            self.preempt(sequence)
        rows.in_flight.clear()
        rows.take_news()
        if rows.store.drop_news():
            rows.groups.reset()
