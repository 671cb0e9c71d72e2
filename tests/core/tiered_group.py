"""A cache group that no plan has: full attention with a tier of copies in host memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf

from attrs import define, field

from inferno.core.kvcache import BlockPool, CacheGroup, IsCached
from inferno.core.types import BlockUpdate, Copy, Sequence


@define
class TieredGroup(CacheGroup):
    """Has `num_places` on the device, fewer than there are blocks, and behind them `num_copies` in
    host memory.

    A block is copied to the host after the step that fills it, and the copy stays as long as no
    later one needs its room. An idle block loses its place on the device when a sequence needs it;
    once a prefix is resumed, the copy is copied back.
    """

    index: int
    num_places: int
    num_copies: int
    block_size: int
    saves: bool = field(default=True, init=False)
    num_restored: int = field(default=0, init=False)
    _pool: BlockPool = field(init=False)
    _place_of: dict[int, int] = field(factory=dict, init=False)
    _idle: dict[int, None] = field(factory=dict, init=False)
    """Blocks whose place no sequence uses, longest idle first."""
    _copy_of: dict[int, int] = field(factory=dict, init=False)
    """The copies, oldest first."""
    _free: list[int] = field(init=False)
    _saved: dict[int, int] = field(factory=dict, init=False)
    """By row, how many of its blocks have been copied, or were resumed."""

    def __attrs_post_init__(self) -> None:
        self._pool = BlockPool(self.num_places)
        self._free = list(range(self.num_places, self.num_places + self.num_copies))

    def fits(self, num_blocks: int) -> bool:
        return self.num_places >= num_blocks

    def available(self, blocks: SequenceOf[int] = ()) -> int:
        """Those of `blocks` that are idle, or only on the host, take a place too."""
        taken = sum(block in self._idle or block not in self._place_of for block in blocks)
        return self._pool.num_free + len(self._idle) - taken

    @property
    def usage(self) -> float:
        return 1 - self.available() / self.num_places

    def match(self, blocks: SequenceOf[int], count: int) -> int:
        known = (block in self._place_of or block in self._copy_of for block in blocks[:count])
        return next((index for index, is_known in enumerate(known) if not is_known), count)

    def resume(self, sequence: Sequence, num_known: int) -> tuple[list[BlockUpdate], list[Copy]]:
        blocks, copies = sequence.block_ids, list[Copy]()
        missing = [block for block in blocks if block not in self._place_of]
        for block in blocks:
            if block in self._place_of:
                self._share(block)
        for block in missing:
            self._take(block)
            copies.append(Copy(self.index, self._copy_of[block], self._place_of[block]))
        self.num_restored += len(missing)
        self._saved[sequence.held_row] = len(blocks)
        return self._entries(sequence, 0), copies

    def acquire(self, sequence: Sequence, first: int) -> list[BlockUpdate]:
        for block in sequence.block_ids[first:]:
            self._take(block)
        return self._entries(sequence, first)

    def _entries(self, sequence: Sequence, first: int) -> list[BlockUpdate]:
        blocks = enumerate(sequence.block_ids[first:], first)
        row = sequence.held_row
        return [BlockUpdate(self.index, row, i, self._place_of[block]) for i, block in blocks]

    def _take(self, block: int) -> None:
        if not self._pool.num_free:
            self._vacate(next(iter(self._idle)))
        self._place_of[block] = self._pool.acquire()

    def _share(self, block: int) -> None:
        self._idle.pop(block, None)
        self._pool.share(self._place_of[block])

    def _vacate(self, block: int) -> None:
        self._idle.pop(block, None)
        self._pool.free(self._place_of.pop(block))

    def advance(self, sequence: Sequence, first: int, is_cached: IsCached) -> None:
        for block in sequence.block_ids[first : sequence.num_inserted]:
            if not is_cached(block):
                self._forget_copy(block)

    def release(self, sequence: Sequence, is_cached: IsCached) -> None:
        del self._saved[sequence.held_row]
        for block in reversed(sequence.block_ids):
            if self._pool.release(self._place_of[block]):
                self._idle[block] = None  # dropped at once if it is not cached

    def replace(self, own: int, known: int) -> None:
        if known in self._place_of:
            self._share(known)
            self._pool.release(self._place_of[own])
            self._vacate(own)
        else:
            self._place_of[known] = self._place_of.pop(own)
        if known not in self._copy_of and own in self._copy_of:
            self._copy_of[known] = self._copy_of.pop(own)
        self._forget_copy(own)

    def drop(self, block: int) -> None:
        self._forget_copy(block)
        if block in self._place_of:
            self._vacate(block)

    def _forget_copy(self, block: int) -> None:
        if (copy := self._copy_of.pop(block, None)) is not None:
            self._free.append(copy)

    def place(self, block: int) -> int | None:
        return self._place_of.get(block)

    def save(self, stops: SequenceOf[tuple[Sequence, int]]) -> Iterable[Copy]:
        for sequence, stop in stops if self.num_copies else ():
            first, end = self._saved[sequence.held_row], stop // self.block_size
            self._saved[sequence.held_row] = max(first, end)
            for block in sequence.block_ids[first:end]:
                if not self._free:
                    self._forget_copy(next(iter(self._copy_of)))
                self._copy_of[block] = self._free.pop()
                yield Copy(self.index, self._place_of[block], self._copy_of[block])

    def check(
        self, sequences: Collection[Sequence], users: Callable[[int], int], is_cached: IsCached
    ) -> None:
        self._pool.check(self._place_of[block] for block in self._idle)
        copies = [*self._free, *self._copy_of.values()]
        assert sorted(copies) == list(range(self.num_places, self.num_places + self.num_copies))
        for block, place in self._place_of.items():
            assert self._pool.users(place) == users(block), "a place is used by others than a block"
        assert all(is_cached(block) or users(block) for block in self._copy_of), "a copy is lost"
        assert self._saved.keys() == {s.held_row for s in sequences}, "a row has no sequence"
