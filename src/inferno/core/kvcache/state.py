"""Slots of recurrent states: one per row, and snapshots at the ends of blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf

from attrs import define, field

from inferno.core.kvcache.group import CacheGroup, IsCached
from inferno.core.types import BlockUpdate, Copy, Sequence

SUPERSEDED, PASSING, LASTING = range(3)
"""The worth of a snapshot, in order of eviction."""


@define
class Snapshots:
    """Copies of sequences' states, each taken at the end of a full block. A prefix can be resumed
    only after a block with a snapshot.

    Snapshots where a prompt ends or two prompts diverge are lasting; those taken in between are
    passing, and superseded as soon as the sequence has a later one. A passing one never evicts a
    lasting one. Among equals, the least recently used is evicted first.

    The slots of a state tensor are, in this order: one per row, one for trial steps, one for each
    draft of a step, the snapshots.
    """

    num_rows: int
    num_snapshots: int
    num_drafts: int = 0
    _slot_of: dict[int, int] = field(factory=dict, init=False)
    """Full block -> the slot of its snapshot."""
    _worth: dict[int, int] = field(factory=dict, init=False)
    _order: tuple[dict[int, None], ...] = field(factory=lambda: ({}, {}, {}), init=False)
    """For each worth, its full blocks, least recently used first."""
    _free: list[int] = field(init=False)
    changed: Callable[[int], object] = field(default=lambda block: None, init=False)
    """Called with blocks whose snapshots come, go or are superseded."""

    def __attrs_post_init__(self) -> None:
        self._free = list(reversed(self._slots()))

    def _slots(self) -> range:
        first = self.num_rows + 1 + self.num_drafts
        return range(first, first + self.num_snapshots)

    def __contains__(self, block: int) -> bool:
        return block in self._slot_of

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

    def slot_of(self, block: int) -> int | None:
        """Return the slot of a block's snapshot, if it has one that is not superseded."""
        return self._slot_of.get(block) if self._worth.get(block) != SUPERSEDED else None

    def supersede(self, block: int) -> None:
        """Mark a passing snapshot as superseded: its sequence has a later one."""
        if self._worth.get(block) == PASSING:
            self._rank(block, SUPERSEDED)

    def deduplicate(self, computed: int, known: int) -> None:
        """Move the snapshot of `computed` to `known`, a block of the same content, unless it has
        one."""
        if computed in self._slot_of and known not in self._slot_of:
            self._slot_of[known] = self._slot_of.pop(computed)
            worth = self._worth.pop(computed)
            del self._order[worth][computed]
            self._rank(known, worth)
        self.drop(computed)

    def drop(self, block: int) -> None:
        """Free the snapshot of a block, if it has one."""
        if (slot := self._slot_of.pop(block, None)) is not None:
            del self._order[self._worth.pop(block)][block]
            self._free.append(slot)
            self.changed(block)

    def _rank(self, block: int, worth: int) -> None:
        """Make a block the most recently used of this worth."""
        if (before := self._worth.get(block)) is not None:
            del self._order[before][block]
        self._worth[block] = worth
        self._order[worth][block] = None
        self.changed(block)

    def check(self, is_cached: IsCached) -> None:
        """Check the invariants."""
        slots = sorted([*self._free, *self._slot_of.values()])
        assert slots == list(self._slots()), "a snapshot's slot is lost"
        ranked = {block: worth for worth, blocks in enumerate(self._order) for block in blocks}
        assert ranked == self._worth, "a snapshot has two ranks"
        assert ranked.keys() == self._slot_of.keys(), "a snapshot was only half dropped"
        assert all(map(is_cached, self._slot_of)), "a snapshot cannot be found"


@define
class StateGroup(CacheGroup):
    """All recurrent layers. A running sequence's states are in its row's slot, so there are no
    block tables; a cached prefix is resumed from the snapshot after its last block."""

    index: int
    snapshots: Snapshots
    block_size: int
    interval: int = 1024
    """Tokens between a sequence's snapshots that later ones do not supersede."""
    most_drafts: int = field(init=False)
    saves: bool = field(init=False)
    _due: dict[int, tuple[int, int]] = field(factory=dict, init=False)
    """By row, the tokens after which to take lasting snapshots."""
    _last: dict[int, int] = field(factory=dict, init=False)
    """By row, the index of the block after which its last snapshot was taken, if any."""

    def __attrs_post_init__(self) -> None:
        self.saves, self.most_drafts = self.snapshots.num_snapshots > 0, self.snapshots.num_drafts
        # Snapshots are of the ends of blocks, so whole blocks lie between them.
        self.interval = -(-self.interval // self.block_size) * self.block_size

    def match(self, blocks: SequenceOf[int], count: int) -> int:
        return next((n for n in range(count, 0, -1) if blocks[n - 1] in self.snapshots), 0)

    def resume(self, sequence: Sequence, num_known: int) -> tuple[list[BlockUpdate], list[Copy]]:
        """Begin with the snapshot after the cached prefix, or with zeros."""
        row, blocks, size = sequence.held_row, sequence.block_ids, self.block_size
        last = (len(sequence.token_ids) - 1) // size
        self._due[row] = (num_known * size, last * size)
        if blocks and blocks[-1] not in self.snapshots:
            return [], []  # a store has it
        source = self.snapshots.use(blocks[-1]) if blocks else None
        return [], [Copy(self.index, source, row)]

    def advance(self, sequence: Sequence, first: int, is_cached: IsCached) -> None:
        for block in sequence.block_ids[first : sequence.num_inserted]:
            if block in self.snapshots and not is_cached(block):
                self.snapshots.drop(block)

    def release(self, sequence: Sequence, is_cached: IsCached) -> None:
        del self._due[sequence.held_row]
        self._last.pop(sequence.held_row, None)

    def replace(self, computed: int, known: int) -> None:
        self.snapshots.deduplicate(computed, known)

    def drop(self, block: int) -> None:
        self.snapshots.drop(block)

    def needs(self, count: int) -> range:
        return range(max(0, count - 1), count)

    def part(self, block: int) -> int | None:
        return self.snapshots.slot_of(block)

    def target(self, sequence: Sequence, block: int) -> int | None:
        return sequence.held_row

    def watch(self, changed: Callable[[int], object]) -> None:
        self.snapshots.changed = changed

    def accepted(self, row: int, count: int) -> Iterable[Copy]:
        return (Copy(self.index, self.snapshots.num_rows + count, row),)

    def cut(self, sequence: Sequence, start: int, stop: int) -> int:
        """End where a snapshot is due, or else with a block."""
        for position in (
            *self._due[sequence.held_row],
            (start // self.interval + 1) * self.interval,
        ):
            if start < position < stop:
                stop = position
        whole = stop - stop % self.block_size
        return whole if start < whole and stop < len(sequence.token_ids) else stop

    def save(self, stops: SequenceOf[tuple[Sequence, int]]) -> Iterable[Copy]:
        """Take the snapshots that are due. Each replaces its sequence's last one, unless that is
        lasting."""
        for sequence, stop in stops:
            if stop % self.block_size:
                continue
            row, index = sequence.held_row, stop // self.block_size - 1
            before = self._last.get(row)
            if before is not None and (before + 1) * self.block_size % self.interval:
                self.snapshots.supersede(sequence.block_ids[before])
            self._last[row] = index
            lasting = stop in self._due[row]
            slot = self.snapshots.save(sequence.block_ids[index], lasting=lasting)
            if slot is not None:
                yield Copy(self.index, row, slot)

    def check(
        self, sequences: Collection[Sequence], users: Callable[[int], int], is_cached: IsCached
    ) -> None:
        # A step in flight saves the states of blocks that it computes.
        self.snapshots.check(lambda block: is_cached(block) or users(block) > 0)
        rows = {s.held_row for s in sequences}
        assert self._due.keys() == rows >= self._last.keys(), "a row has no sequence"
