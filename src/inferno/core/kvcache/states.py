"""Slots of recurrent states: one per row, and snapshots at the ends of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field


@define
class Snapshots:
    """Copies of sequences' states, each as it was at the end of a full block. A prefix can be
    resumed only where there is one.

    A snapshot is *lasting* where a prompt ends or two prompts part. The others, taken on the way,
    are evicted first, and never evict a lasting one. Among equals the least recently used goes.

    The slots of a state tensor are, in this order: one per row, one for trial steps, the snapshots.
    """

    num_rows: int
    num_snapshots: int
    interval: int = 1024
    """In tokens: how often a sequence takes a snapshot that its next one does not replace."""
    _slot_of: dict[int, int] = field(factory=dict, init=False)
    """Full block -> the slot of its snapshot, least recently used first."""
    _passing: dict[int, None] = field(factory=dict, init=False)
    """Those that are not lasting, in the same order."""
    _free: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(reversed(self._slots()))

    def _slots(self) -> range:
        return range(self.num_rows + 1, self.num_rows + 1 + self.num_snapshots)

    def __contains__(self, block: int) -> bool:
        return block in self._slot_of

    def resumable(self, blocks: Sequence[int], count: int) -> int:
        """The most of the first `count` blocks at whose end there is a snapshot."""
        return next((n for n in range(count, 0, -1) if blocks[n - 1] in self._slot_of), 0)

    def save(self, block: int, *, lasting: bool) -> int | None:
        """The slot to copy a state to that was computed up to the end of this block; None where
        there is no room."""
        assert block not in self._slot_of, "a block just computed has a snapshot"
        if not self._free:
            victim = next(iter(self._passing), None)
            if victim is None and lasting:
                victim = next(iter(self._slot_of), None)
            if victim is None:
                return None
            self.drop(victim)
        self._slot_of[block] = slot = self._free.pop()
        if not lasting:
            self._passing[block] = None
        return slot

    def use(self, block: int) -> int:
        """The slot of a block's snapshot, which is from now on the most recently used."""
        self._slot_of[block] = slot = self._slot_of.pop(block)
        if block in self._passing:
            self._passing[block] = self._passing.pop(block)
        return slot

    def supersede(self, block: int) -> None:
        """The sequence that took a block's snapshot has a later one: drop it, unless it lasts."""
        if block in self._passing:
            self.drop(block)

    def deduplicate(self, own: int, known: int) -> None:
        """`known` has the same content as `own` and takes its snapshot, unless it has one."""
        if own in self._slot_of and known not in self._slot_of:
            self._slot_of[known] = self._slot_of.pop(own)
            if own in self._passing:
                self._passing[known] = self._passing.pop(own)
        self.drop(own)

    def drop(self, block: int) -> None:
        """Free the snapshot of a block, if it has one."""
        self._passing.pop(block, None)
        if (slot := self._slot_of.pop(block, None)) is not None:
            self._free.append(slot)

    def check(self, cached: Callable[[int], bool]) -> None:
        """Check the invariants."""
        slots = sorted([*self._free, *self._slot_of.values()])
        assert slots == list(self._slots()), "a snapshot's slot is lost"
        assert self._passing.keys() <= self._slot_of.keys(), "a snapshot was dropped by half"
        assert all(map(cached, self._slot_of)), "a snapshot cannot be found"
