"""The cache as the scheduler sees it: the blocks of all sequences, and all groups at once.

A block is a name for `block_size` tokens and all before them. Sequences and the prefix cache refer
to blocks; layers with the same cache needs form a group, which stores something for a block, at a
place of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from inferno.contracts import PrefixCache
from inferno.core.kvcache.blocks import BlockPool
from inferno.core.kvcache.full import FullGroup
from inferno.core.kvcache.group import UNLIMITED, CacheGroup
from inferno.core.kvcache.planned import groups_of
from inferno.core.kvcache.sharing import needs_prompt
from inferno.core.types import BlockUpdate, Copy, Sequence
from inferno.plan import Plan
from inferno.stores.keys import extend_keys
from inferno.stores.presence import NO_PRESENCE, NoPresence


class Match(NamedTuple):
    """The cached part of a sequence's prefix."""

    known: list[int]
    """The cached blocks, resumable or not."""
    num_cached: int
    """How many blocks can be resumed after, in every group."""
    num_blocks: int
    """The same with what a store has."""
    last: int | None = None
    """The cached block that ends with the sequence's last token."""


class CacheGroups:
    """Tracks which sequence uses which blocks, and has every group do its part. Knows no tensors.

    Changes of sequences' block tables are returned as updates for the runner.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix: PrefixCache | None = None,
        groups: Iterable[CacheGroup] = (FullGroup(),),
        whole_prompts: bool = False,
    ) -> None:
        self.num_blocks, self.block_size, self.prefix = num_blocks, block_size, prefix
        self.groups = tuple(groups)
        self._blocks = BlockPool(num_blocks)
        self._limited = tuple(g for g in self.groups if g.available() < UNLIMITED)
        self._saving = tuple(g for g in self.groups if g.saves)
        self.most_drafts = min(group.most_drafts for group in self.groups)
        self.saves = bool(self._saving)  # else slices take all tokens
        self.whole_prompts = whole_prompts
        self._presence: NoPresence = NO_PRESENCE

    @classmethod
    def of_plan(cls, plan: Plan, prefix: PrefixCache | None) -> CacheGroups:
        groups = groups_of(plan, saves=prefix is not None)
        return cls(plan.num_blocks, plan.block_size, prefix, groups, plan.whole_prompts)

    def available(self, cached: SequenceOf[int] = ()) -> int:
        """Return how many blocks `acquire` could take, free or idle, once a new sequence uses these
        cached ones: those that were idle are no longer available."""
        count = self._num_unused
        if cached:
            count -= sum(self._blocks.users(block) == 0 for block in cached)
        for group in self._limited:
            count = min(count, group.available(cached))
        return count

    @property
    def num_used(self) -> int:
        """Number of blocks that sequences use."""
        return self.num_blocks - self._num_unused

    @property
    def _num_unused(self) -> int:
        return self._blocks.num_free + (self.prefix.num_idle if self.prefix is not None else 0)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences use, or of the fullest group's places, 0 to 1."""
        share = self.num_used / self.num_blocks
        for group in self._limited:
            share = max(share, group.usage)
        return share

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence that runs alone can always compute this many tokens at once."""
        return all(group.fits(self.blocks_for(num_tokens)) for group in self.groups)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> Match:
        """Look up a sequence's prefix. At least one token remains to be computed."""
        if self.prefix is None or needs_prompt(sequence):
            return Match([], 0, 0)
        self._extend_keys(sequence)
        cached = self.prefix.match(sequence.keys)
        count = (len(sequence.token_ids) - 1) // self.block_size
        known = cached[:count]
        num_cached = self.resumable(known)
        return Match(known, num_cached, num_cached, next(iter(cached[count:]), None))

    def resumable(self, block_ids: SequenceOf[int]) -> int:
        """Return how many of these blocks every group can resume after."""
        count, before = len(block_ids), -1
        # Where one group can resume, another may not: go on until no group shortens the prefix.
        while count != before:
            before = count
            for group in self.groups:
                count = group.match(block_ids, count)
        return count

    def resume(self, sequence: Sequence, match: Match) -> tuple[list[BlockUpdate], list[Copy]]:
        """Let a sequence without blocks continue after the cached ones. Returns also what to copy
        before its first slice."""
        sequence.block_ids = match.known[: match.num_blocks]
        # Shared before `_extend`, which evicts idle blocks: these may be idle until now.
        for block in sequence.block_ids:
            self._share(block)
        self._extend(sequence, match.num_blocks - len(sequence.block_ids))
        updates, copies = list[BlockUpdate](), list[Copy]()
        for group in self.groups:
            entries, sources = group.resume(sequence, len(match.known))
            updates += entries
            copies += sources
        return updates, copies

    def acquire(self, sequence: Sequence, count: int) -> list[BlockUpdate]:
        """Give a sequence `count` more blocks, evicting idle ones if too few are free."""
        first = len(sequence.block_ids)
        self._extend(sequence, count)
        updates: list[BlockUpdate] = []
        for group in self.groups:
            updates += group.acquire(sequence, first)
        return updates

    def _extend(self, sequence: Sequence, count: int) -> None:
        missing = count - self._blocks.num_free
        if self.prefix is not None and missing > 0:
            self._evicted(self.prefix.evict(missing))
        assert count <= self._blocks.num_free, "the scheduler checks available first"
        sequence.block_ids += [self._blocks.acquire() for _ in range(count)]

    def acquire_copy(
        self, sequence: Sequence, source: int
    ) -> tuple[list[BlockUpdate], list[tuple[int, int, int]]]:
        """Give a sequence one more block. Return also (group, source, target) for copies of the
        source to it: none in groups that evicted the source to make room, and gave it."""
        # Before `acquire`, which may evict the source and give its place away.
        sources = [group.place(source) for group in self.groups]
        updates, copies = self.acquire(sequence, 1), []
        for group, place in zip(self.groups, sources, strict=True):
            target = group.place(sequence.block_ids[-1])
            assert place is not None and target is not None, "`fork_of` returns a block with places"
            if place != target:
                copies.append((group.index, place, target))
        return updates, copies

    def has_places(self, block: int) -> bool:
        """Whether a copy of the block can be made in every group."""
        return all(group.place(block) is not None for group in self.groups)

    def advance(self, sequence: Sequence) -> list[BlockUpdate]:
        """Cache the blocks that became full, and release what no pending token needs. A block whose
        content is already cached is replaced by the cached one."""
        num_full = sequence.num_computed // self.block_size
        first, sequence.num_inserted = sequence.num_inserted, num_full
        updates: list[BlockUpdate] = []
        if self.prefix is not None:
            self._extend_keys(sequence)
            for index in range(first, num_full):
                block_id, keys = sequence.block_ids[index], sequence.keys
                parent = keys[index - 1] if index else None
                known = self.prefix.insert(keys[index], block_id, parent)
                if known == block_id:
                    self._presence.name(block_id, sequence, index)
                else:
                    updates += self._replace(sequence, index, known)
        for group in self.groups:
            group.advance(sequence, first, self._is_cached)
        return updates

    def _replace(self, sequence: Sequence, index: int, known: int) -> Iterator[BlockUpdate]:
        """Replace a sequence's block by the cached one with the same content."""
        row, block_id = sequence.held_row, sequence.block_ids[index]
        self._share(known)
        for group in self.groups:
            group.replace(block_id, known)
            if (place := group.place(known)) is not None:
                yield BlockUpdate(group.index, row, index, place)
        self._release(block_id)
        sequence.block_ids[index] = known

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a sequence, last to first, so that a continuation becomes idle
        before the block it continues."""
        for group in self.groups:
            group.release(sequence, self._is_cached)
        for block in reversed(sequence.block_ids):
            self._release(block)
        sequence.block_ids, sequence.num_inserted = [], 0

    def slice_tokens(self, sequence: Sequence, start: int, count: int) -> int:
        """Return how many of `count` pending tokens a slice takes: it ends where a copy is due."""
        if count == 1:
            return count
        stop = start + count
        for group in self._saving:
            stop = group.cut(sequence, start, stop)
        return stop - start

    def accepted(self, row: int, count: int) -> list[Copy]:
        """Return what to copy where a row goes on after one of the last step's drafts: the last of
        the first `count` in it."""
        return [copy for group in self.groups for copy in group.accepted(row, count)]

    def save(self, stops: Iterable[tuple[Sequence, int]]) -> tuple[Copy, ...]:
        """Return the copies due once a step has computed these sequences up to these tokens."""
        if not self._saving:
            return ()
        computed = list(stops)
        copies = [copy for group in self._saving for copy in group.save(computed)]
        # A snapshot may evict one of the same step: of two copies to a slot the later one counts.
        return tuple({(copy.group, copy.target): copy for copy in copies}.values())

    def reset(self) -> None:
        """Drop every idle block from the prefix cache."""
        if self.prefix is not None:
            self._evicted(self.prefix.clear())

    def watch(self, presence: NoPresence) -> None:
        """Tell from now on which cached blocks come, go, and change."""
        self._presence = presence
        for group in self.groups:
            group.watch(presence.touch)

    def parts_of(self, block: int) -> int:
        """Return the groups that have a part of a block, as a set of bits; 0 if it is not
        cached."""
        if not self._is_cached(block):
            return 0
        return sum(1 << group.index for group in self.groups if group.part(block) is not None)

    def drop(self, block_ids: list[int]) -> None:
        """Drop these idle blocks from the prefix cache."""
        if self.prefix is not None:
            self._evicted(self.prefix.drop(block_ids))

    def _extend_keys(self, sequence: Sequence) -> None:
        request, (adapter, salt) = sequence.request, sequence.request.content
        given = self.block_size, salt, adapter, request.images
        extend_keys(sequence.keys, sequence.token_ids, *given)

    def _is_cached(self, block: int) -> bool:
        return self.prefix is not None and self.prefix.contains(block)

    def _share(self, block: int) -> None:
        if self._blocks.users(block) == 0:
            assert self.prefix is not None, "only a prefix cache leaves blocks idle"
            self.prefix.touch(block)
        self._blocks.share(block)

    def _release(self, block: int) -> None:
        if self._blocks.release(block):
            if self.prefix is not None and self.prefix.contains(block):
                self.prefix.release(block)
            else:
                self._evicted([block])

    def _evicted(self, block_ids: list[int]) -> None:
        for block in block_ids:
            self._blocks.free(block)
            self._presence.touch(block)
            for group in self.groups:
                group.drop(block)

    def check(self, sequences: Collection[Sequence] = ()) -> None:
        """Check the invariants of every group, given all sequences that have blocks."""
        self._blocks.check(self.prefix.num_idle if self.prefix is not None else 0)
        used = {block for sequence in sequences for block in sequence.block_ids}
        assert len(used) == self.num_used, "a block has no sequence"
        for group in self.groups:
            group.check(sequences, self._blocks.users, self._is_cached)
