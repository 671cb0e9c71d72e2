"""Slots for drafts: how many tokens of the next step are drafts to verify."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from inferno.core.kvcache.group import UNLIMITED
from inferno.core.schedule.rows import Rows
from inferno.core.types import Sequence, Slice
from inferno.plan.draft_cost import DraftCost, at_most


@define(eq=False)
class Speculation:
    """Gives slices drafts, the proposer's or those that the engine suggests."""

    rows: Rows
    cost: DraftCost
    proposes: bool
    """Whether there is a proposer."""
    max_num_seqs: int
    _suggestions: dict[int, tuple[int, ...]] = field(factory=dict)
    """By row, for the step being planned."""
    _given: int = 0
    """Drafts that its slices verify so far."""

    def pays_to_wait(self, sequence: Sequence) -> bool:
        """Return whether to wait until the last token is known, because drafts then pay."""
        if not self.proposes or sequence.num_left <= 1:
            return False
        return sequence.acceptance.best(self.cost, len(self.rows.running)) > 0

    def slots(self, sequence: Sequence, stop: int, budget: int) -> int:
        """Return how many drafts a slice that ends at `stop` verifies, and acquire their blocks.
        Takes fewer drafts rather than preempt a sequence."""
        num_running, suggested = len(self.rows.running), sequence.suggested
        count = sequence.acceptance.count(self.cost, num_running)
        groups = self.rows.groups
        # Without a proposer the plan has memory for the logits of max_num_seqs tokens.
        room = groups.most_drafts if self.proposes else self.max_num_seqs - num_running
        if groups.most_drafts < UNLIMITED and self.rows.in_flight:
            return 0  # a step in flight has what it verifies where this one would
        count = min(count, sequence.num_left - 1, budget, room - self._given)
        count = min(count, len(suggested)) if suggested else at_most(count, self.cost.most)
        if count <= 0:
            return 0
        missing = groups.blocks_for(stop + count) - len(sequence.block_ids)
        if missing > 0:
            # As at admission, one block stays for each running sequence to grow into.
            if groups.available() < missing + num_running:
                count = len(sequence.block_ids) * groups.block_size - stop
            else:
                self.rows.updates += groups.acquire(sequence, missing)
        sequence.is_verifying = count > 0
        self._given += max(0, count)
        if count > 0 and suggested:
            self._suggestions[sequence.held_row] = suggested[:count]
        return count

    def take_suggestions(self, slices: Iterable[Slice]) -> dict[int, tuple[int, ...]]:
        """Return the suggestions for a step of these slices, by row, and forget all."""
        drafts, self._suggestions, self._given = self._suggestions, {}, 0
        return {s.row: drafts[s.row] for s in slices if s.row in drafts} if drafts else drafts
