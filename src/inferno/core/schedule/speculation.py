"""Slots for drafts: how many tokens of the next step are drafts to verify."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

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
        count = min(count, sequence.num_left - 1, budget)
        count = min(count, len(suggested)) if suggested else at_most(count, self.cost.most)
        if not self.proposes:  # the plan has memory for the logits of max_num_seqs tokens
            taken = sum(map(len, self._suggestions.values()))
            count = min(count, self.max_num_seqs - num_running - taken)
        if count <= 0:
            return 0
        groups = self.rows.groups
        missing = groups.blocks_for(stop + count) - len(sequence.block_ids)
        if missing > 0:
            # As at admission, one block stays for each running sequence to grow into.
            if groups.available() < missing + num_running:
                count = len(sequence.block_ids) * groups.block_size - stop
            else:
                self.rows.updates += groups.acquire(sequence, missing)
        sequence.is_verifying = count > 0
        if count > 0 and suggested:
            self._suggestions[sequence.held_row] = suggested[:count]
        return count

    def take_suggestions(self, slices: Iterable[Slice]) -> dict[int, tuple[int, ...]]:
        """Return the suggestions for a step of these slices, by row, and forget all."""
        drafts, self._suggestions = self._suggestions, {}
        return {s.row: drafts[s.row] for s in slices if s.row in drafts} if drafts else drafts
