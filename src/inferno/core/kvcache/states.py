"""Slots of recurrent states: one per row, and snapshots at the ends of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field

SUPERSEDED, PASSING, LASTING = range(3)
"""The worth of a snapshot, in order of eviction."""


@define
class Snapshots:
    """Copies of sequences' states, each taken at the end of a full block. A prefix can be resumed
    only after a block with a snapshot.

    Snapshots where a prompt ends or two prompts diverge are lasting; those taken in between are
    passing, and superseded as soon as the sequence has a later one. A passing one never evicts a
    lasting one. Among equals, the least recently used is evicted first.

    The slots of a state tensor are, in this order: one per row, one for trial steps, the snapshots.
    """

    num_rows: int
    num_snapshots: int
    interval: int = 1024
    """Tokens between a sequence's snapshots that later ones do not supersede."""
    _slot_of: dict[int, int] = field(factory=dict, init=False)
    """Full block -> the slot of its snapshot."""
    _worth: dict[int, int] = field(factory=dict, init=False)
    _order: tuple[dict[int, None], ...] = field(factory=lambda: ({}, {}, {}), init=False)
    """For each worth, its full blocks, least recently used first."""
    _free: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(reversed(self._slots()))

    def _slots(self) -> range:
        return range(self.num_rows + 1, self.num_rows + 1 + self.num_snapshots)

    def __contains__(self, block: int) -> bool:
        return block in self._slot_of

    def resumable(self, blocks: Sequence[int], count: int) -> int:
        """Return the length of the longest prefix, at most `count` blocks, that ends at a
        snapshot."""
        return next((n for n in range(count, 0, -1) if blocks[n - 1] in self._slot_of), 0)

    def save(self, block: int, *, lasting: bool) -> int | None:
        """Return a slot for a snapshot of the state at the end of this block, or None if there is
        no room."""
        assert block not in self._slot_of, "a newly computed block has a snapshot"
        worth = LASTING if lasting else PASSING
        if not self._free:
            evictable = self._order if lasting else self._order[:LASTING]
            victim = next((block for blocks in evictable for block in blocks), None)
            if victim is None:
                return None
            self.drop(victim)
        self._slot_of[block] = slot = self._free.pop()
        self._rank(block, worth)
        return slot

    def use(self, block: int) -> int:
        """Return the slot of a block's snapshot, and mark it as the most recently used."""
        self._rank(block, max(PASSING, self._worth[block]))
        return self._slot_of[block]

    def supersede(self, block: int) -> None:
        """Mark a passing snapshot as superseded: its sequence has a later one."""
        if self._worth.get(block) == PASSING:
            self._rank(block, SUPERSEDED)

    def deduplicate(self, own: int, known: int) -> None:
        """Move the snapshot of `own` to `known`, which has the same content, unless it has one."""
        if own in self._slot_of and known not in self._slot_of:
            self._slot_of[known] = self._slot_of.pop(own)
            worth = self._worth.pop(own)
            del self._order[worth][own]
            self._rank(known, worth)
        self.drop(own)

    def drop(self, block: int) -> None:
        """Free the snapshot of a block, if it has one."""
        if (slot := self._slot_of.pop(block, None)) is not None:
            del self._order[self._worth.pop(block)][block]
            self._free.append(slot)

    def _rank(self, block: int, worth: int) -> None:
        """Make a block the most recently used of this worth."""
        if (before := self._worth.get(block)) is not None:
            del self._order[before][block]
        self._worth[block] = worth
        self._order[worth][block] = None

    def check(self, cached: Callable[[int], bool]) -> None:
        """Check the invariants."""
        slots = sorted([*self._free, *self._slot_of.values()])
        assert slots == list(self._slots()), "a snapshot's slot is lost"
        ranked = {block: worth for worth, blocks in enumerate(self._order) for block in blocks}
        assert ranked == self._worth, "a snapshot has two ranks"
        assert ranked.keys() == self._slot_of.keys(), "a snapshot was only half dropped"
        assert all(map(cached, self._slot_of)), "a snapshot cannot be found"
