"""The groups of layers that attend to a sliding window, or to chunks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf

from attrs import define, field

from inferno.core.kvcache.blocks import BlockPool
from inferno.core.kvcache.group import CacheGroup, IsCached
from inferno.core.types import BlockUpdate, Copy, Sequence


@define
class WindowGroup(CacheGroup):
    """Has fewer places than there are blocks: a block has one while a sequence's window covers it.
    A cached block keeps it, idle, until the memory is needed."""

    index: int
    num_places: int
    block_size: int
    window: int
    """In tokens, the current one included."""
    chunked: bool = False
    """Whether a window does not slide, but begins anew after as many tokens."""
    _place_of: dict[int, int] = field(factory=dict, init=False)
    _pool: BlockPool = field(init=False)
    _idle: dict[int, None] = field(factory=dict, init=False)
    """Blocks in the order in which their places became idle."""
    _first: dict[int, int] = field(factory=dict, init=False)
    """By row, the index of the first block that its sequence holds."""
    _changed: Callable[[int], object] = field(default=lambda block: None, init=False)

    def __attrs_post_init__(self) -> None:
        self._pool = BlockPool(self.num_places)

    def first(self, position: int) -> int:
        """Index of the first block that a query at this position attends to."""
        back = position % self.window if self.chunked else self.window - 1
        return max(0, position - back) // self.block_size

    def fits(self, num_blocks: int) -> bool:
        return self.num_places > -(-self.window // self.block_size) + num_blocks

    def available(self, blocks: SequenceOf[int] = ()) -> int:
        count = self._pool.num_free + len(self._idle)
        if not blocks:
            return count
        covered = blocks[self.first(len(blocks) * self.block_size) :]
        return count - sum(block in self._idle for block in covered)

    @property
    def num_used(self) -> int:
        return self.num_places - self.available()

    @property
    def usage(self) -> float:
        return self.num_used / self.num_places

    def match(self, blocks: SequenceOf[int], count: int) -> int:
        """Return `count` if the last window of such a prefix is still cached, else the index of the
        first missing block: no longer prefix can be resumed."""
        indices = range(self.first(count * self.block_size), count)
        return next((i for i in indices if blocks[i] not in self._place_of), count)

    def resume(self, sequence: Sequence, num_known: int) -> tuple[list[BlockUpdate], list[Copy]]:
        first = self.first(len(sequence.block_ids) * self.block_size)
        self._first[sequence.held_row] = first
        covered = sequence.block_ids[first:]
        missing = [block for block in covered if block not in self._place_of]  # a store has them
        # Shared before `_take`, which drops idle blocks when no place is free.
        for block in covered:
            if block in self._place_of:
                self._share(block)
        self._take(missing)
        for block in missing:
            self._changed(block)
        return self._entries(sequence, first), []

    def acquire(self, sequence: Sequence, first: int) -> list[BlockUpdate]:
        self._take(sequence.block_ids[first:])
        return self._entries(sequence, first)

    def _take(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self._pool.num_free:
                self.drop(next(iter(self._idle)))
            self._place_of[block] = self._pool.acquire()

    def _entries(self, sequence: Sequence, first: int) -> list[BlockUpdate]:
        row, blocks = sequence.held_row, sequence.block_ids
        places, group = self._place_of, self.index
        return [BlockUpdate(group, row, i, places[blocks[i]]) for i in range(first, len(blocks))]

    def _share(self, block: int) -> None:
        self._idle.pop(block, None)
        self._pool.share(self._place_of[block])

    def advance(self, sequence: Sequence, first: int, is_cached: IsCached) -> None:
        begin, end = self._first[sequence.held_row], self.first(sequence.num_computed)
        if end > begin:
            self._release(sequence.block_ids[begin:end], is_cached)
            self._first[sequence.held_row] = end

    def release(self, sequence: Sequence, is_cached: IsCached) -> None:
        first = self._first.pop(sequence.held_row)
        self._release(reversed(sequence.block_ids[first:]), is_cached)

    def _release(self, blocks: Iterable[int], is_cached: IsCached) -> None:
        """Count one sequence less for these blocks. The first given is the first to be evicted."""
        for block in blocks:
            if self._pool.release(self._place_of[block]):
                if is_cached(block):
                    self._idle[block] = None
                else:
                    self._pool.free(self._place_of.pop(block))

    def replace(self, computed: int, known: int) -> None:
        """`known` takes the place of `computed` if it has lost its own."""
        if computed not in self._place_of:  # of a loaded prefix, before its last window
            return
        assert self._pool.users(self._place_of[computed]) == 1, "a computed block has two users"
        if known in self._place_of:
            self._share(known)
            self._pool.release(self._place_of[computed])
            self._pool.free(self._place_of.pop(computed))
        else:
            self._place_of[known] = self._place_of.pop(computed)
            self._changed(known)

    def drop(self, block: int) -> None:
        self._idle.pop(block, None)
        if (place := self._place_of.pop(block, None)) is not None:
            self._pool.free(place)
            self._changed(block)

    def watch(self, changed: Callable[[int], object]) -> None:
        self._changed = changed

    def needs(self, count: int) -> range:
        return range(self.first(count * self.block_size), count)

    def place(self, block: int) -> int | None:
        return self._place_of.get(block)

    def check(
        self, sequences: Collection[Sequence], users: Callable[[int], int], is_cached: IsCached
    ) -> None:
        places = self._place_of
        assert len(set(places.values())) == len(places), "a place has two blocks"
        self._pool.check(places[block] for block in self._idle)
        for block, place in places.items():
            used = self._pool.users(place)
            assert used <= users(block), "a window covers a block that is not held"
            assert (used == 0) == (block in self._idle), "a block is used and idle, or neither"
        assert all(map(is_cached, self._idle)), "an idle block cannot be found"
        assert len(self._first) == len(sequences), "a row has no sequence"
        covered = set[int]()
        for s in sequences:
            first = self._first[s.held_row]
            assert first <= self.first(s.num_computed), "a window covers a block that was released"
            covered.update(s.block_ids[first:])
        assert covered <= places.keys(), "a window covers a block that has no place"
        assert len(covered) == self.num_used, "a used block has no sequence"
