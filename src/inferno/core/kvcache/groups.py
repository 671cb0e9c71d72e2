"""The cache as the scheduler sees it: all groups at once.

Layers with the same cache needs form a group. The full group has the blocks that sequences and the
prefix cache refer to, one for every `block_size` tokens; in a model without full attention they
store nothing. Every sliding window has a group of fewer blocks, and all recurrent states together
are one group of slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from inferno.contracts import PrefixCache
from inferno.core.kvcache.blocks import BlockPool, WindowBlocks
from inferno.core.kvcache.keys import extend_keys
from inferno.core.kvcache.states import Snapshots
from inferno.core.types import BlockUpdate, Sequence, StateCopy
from inferno.plan import Plan

FULL = 0
"""The full group's index; those of the windows follow."""


class Match(NamedTuple):
    """The cached part of a sequence's prefix."""

    block_ids: list[int]
    """Its longest part after which every group can resume."""
    num_known: int
    """Number of cached blocks, resumable or not."""
    last: int | None = None
    """The cached block that ends with the sequence's last token."""


class CacheGroups:
    """Tracks which sequence holds which blocks of every group. Knows no tensors.

    A sequence holds all its full blocks, and in a window's group those from `Sequence.held_from`
    on. Changes of its block tables are returned as updates for the runner.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix: PrefixCache | None = None,
        windows: Iterable[WindowBlocks] = (),
        snapshots: Snapshots | None = None,
    ) -> None:
        """`snapshots` is given if layers keep recurrent states."""
        self.num_blocks, self.block_size, self.prefix = num_blocks, block_size, prefix
        self.windows, self.snapshots = tuple(windows), snapshots
        self.has_states = snapshots is not None
        self._full = BlockPool(num_blocks)
        self._saves = prefix is not None and snapshots is not None and snapshots.num_snapshots > 0
        interval = snapshots.interval if snapshots is not None else block_size
        self._snapshot_tokens = self.blocks_for(interval) * block_size

    @classmethod
    def of_plan(cls, plan: Plan, prefix: PrefixCache | None) -> CacheGroups:
        windows = [
            WindowBlocks(group.num_blocks, plan.block_size, group.window)
            for group in plan.groups
            if group.window is not None
        ]
        snapshots = next(
            (
                Snapshots(plan.max_num_seqs, group.num_snapshots)
                for group in plan.groups
                if group.kind == "state"
            ),
            None,
        )
        return cls(plan.num_blocks, plan.block_size, prefix, windows, snapshots)

    # --- capacity ---------------------------------------------------------------------------------

    @property
    def num_available(self) -> int:
        """Number of blocks that `acquire` could take, free or idle, in the group that has
        fewest."""
        return min((self._num_unused, *(window.num_available for window in self.windows)))

    @property
    def num_used(self) -> int:
        """Number of full blocks that sequences hold."""
        return self.num_blocks - self._num_unused

    @property
    def _num_unused(self) -> int:
        return self._full.num_free + (self.prefix.num_idle if self.prefix is not None else 0)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, 0 to 1, in the fullest group."""
        return max(
            (self.num_used / self.num_blocks, *(w.num_used / w.num_blocks for w in self.windows))
        )

    def num_available_after(self, block_ids: list[int]) -> int:
        """Return `num_available` once a new sequence has acquired these cached blocks: those that
        were idle are no longer available."""
        position = len(block_ids) * self.block_size
        idle = sum(self._full.users(block) == 0 for block in block_ids)
        return min(
            (
                self._num_unused - idle,
                *(
                    w.num_available - w.num_idle_among(block_ids[w.first(position) :])
                    for w in self.windows
                ),
            )
        )

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> Match:
        """Look up a sequence's prefix. At least one token remains to be computed, for its
        logits."""
        if self.prefix is None or _needs_prompt(sequence):
            return Match([], 0)
        self._extend_keys(sequence)
        found = self.prefix.match(sequence.keys)
        count = (len(sequence.token_ids) - 1) // self.block_size
        known = found[:count]
        return Match(self.resumable(known), len(known), next(iter(found[count:]), None))

    def resumable(self, block_ids: list[int]) -> list[int]:
        """Return the longest prefix of these blocks after which every group can resume: its last
        windows are still cached, and its states have a snapshot."""
        count, before = len(block_ids), -1
        while count != before:
            before = count
            for window in self.windows:
                count = window.resumable(block_ids, count)
            if self.snapshots is not None:
                count = self.snapshots.resumable(block_ids, count)
        return block_ids[:count]

    def is_being_computed(
        self, sequence: Sequence, index: int, running: Iterable[Sequence]
    ) -> bool:
        """Whether a running sequence is about to compute the block that this one needs next: the
        same prompt, or `n` > 1."""
        last = (len(sequence.token_ids) - 1) // self.block_size
        if index >= min(len(sequence.keys), last):
            return False
        key = sequence.keys[index]
        return any(
            s.num_inserted <= index < len(s.keys) and s.keys[index] == key
            for s in running
            if len(s.token_ids) - s.num_computed > 1
        )

    # --- a sequence's blocks ----------------------------------------------------------------------

    def resume(self, sequence: Sequence, match: Match) -> list[BlockUpdate]:
        """Let a sequence without blocks continue after the cached ones."""
        block_size = self.block_size
        for block in match.block_ids:
            self._share(block)
        position = len(match.block_ids) * block_size
        sequence.held_from = [window.first(position) for window in self.windows]
        for window, first in zip(self.windows, sequence.held_from, strict=True):
            window.share(match.block_ids[first:])
        last = (len(sequence.token_ids) - 1) // block_size
        sequence.snapshots_at = (match.num_known * block_size, last * block_size)
        return self._extend(sequence, match.block_ids)

    def acquire(self, sequence: Sequence, count: int) -> list[BlockUpdate]:
        """Give a sequence `count` more blocks in every group, evicting idle ones if too few are
        free."""
        missing = count - self._full.num_free
        if self.prefix is not None and missing > 0:
            self._evicted(self.prefix.evict(missing))
        assert count <= self._full.num_free, "the scheduler checks num_available first"
        blocks = [self._full.acquire() for _ in range(count)]
        for window in self.windows:
            window.acquire(blocks)
        return self._extend(sequence, blocks)

    def fork_of(
        self, sequence: Sequence, last: int | None, running: Iterable[Sequence]
    ) -> int | None:
        """Return the block to copy as this sequence's last one, so that only its last token is
        computed again. It is cached (`Match.last`), or it belongs to a running sequence with the
        same prompt (for example the first of `n` outputs). None if there is no such block, or if
        the model has recurrent states, which cannot go back one token."""
        block_ids, request = sequence.block_ids, sequence.request
        first, stop = len(block_ids) * self.block_size, len(sequence.token_ids) - 1
        is_partial = first < stop < first + self.block_size
        if not is_partial or self.has_states or _needs_prompt(sequence):
            return None
        if last is not None and all(last in window.block_of for window in self.windows):
            return last
        for other in running:
            if (
                other is not sequence
                and other.num_computed >= stop
                and other.block_ids[: len(block_ids)] == block_ids
                and other.request.token_ids == request.token_ids == tuple(sequence.token_ids)
                and other.request.cache_salt == request.cache_salt
                and all(other.block_ids[len(block_ids)] in w.block_of for w in self.windows)
            ):
                return other.block_ids[len(block_ids)]
        return None

    def acquire_copy(
        self, sequence: Sequence, source: int
    ) -> tuple[list[BlockUpdate], list[tuple[int, int, int]]]:
        """Give a sequence one more block. Return also (group, source, target) for copies of the
        source to it: none in groups that evicted the source to make room, and gave it."""
        sources = self._places(source)
        updates = self.acquire(sequence, 1)
        targets = self._places(sequence.block_ids[-1])
        pairs = enumerate(zip(sources, targets, strict=True), FULL)
        return updates, [(group, *pair) for group, pair in pairs if pair[0] != pair[1]]

    def _places(self, block: int) -> list[int]:
        """Return a full block's own id, and that of its block in each window's group."""
        return [block, *(window.block_of[block] for window in self.windows)]

    def _extend(self, sequence: Sequence, blocks: list[int]) -> list[BlockUpdate]:
        row, begin = sequence.held_row, len(sequence.block_ids)
        sequence.block_ids += blocks
        updates = [BlockUpdate(FULL, row, i, block) for i, block in enumerate(blocks, begin)]
        if not self.windows:
            return updates
        for group, (window, first) in enumerate(
            zip(self.windows, sequence.held_from, strict=True), FULL + 1
        ):
            updates += [
                BlockUpdate(group, row, i, window.block_of[sequence.block_ids[i]])
                for i in range(max(first, begin), len(sequence.block_ids))
            ]
        return updates

    def insert(self, sequence: Sequence) -> list[BlockUpdate]:
        """Cache the blocks that became full. A block whose content is already cached is replaced by
        the cached one."""
        num_full = sequence.num_computed // self.block_size
        first, sequence.num_inserted = sequence.num_inserted, num_full
        if self.prefix is None:
            return []
        updates = []
        self._extend_keys(sequence)
        for index in range(first, num_full):
            own = sequence.block_ids[index]
            known = self.prefix.insert(sequence.keys[index], own)
            if known != own:
                updates += self._deduplicate(sequence, index, known)
            elif self.snapshots is not None and not self.prefix.contains(own):
                self.snapshots.drop(own)
        return updates

    def _deduplicate(self, sequence: Sequence, index: int, known: int) -> list[BlockUpdate]:
        """Replace a sequence's block by the cached one with the same content."""
        row, own = sequence.held_row, sequence.block_ids[index]
        blocks = [known, *(window.deduplicate(own, known) for window in self.windows)]
        if self.snapshots is not None:
            self.snapshots.deduplicate(own, known)
        self._share(known)
        self._release(own)
        sequence.block_ids[index] = known
        return [BlockUpdate(group, row, index, block) for group, block in enumerate(blocks)]

    def free_before(self, sequence: Sequence) -> None:
        """Release the blocks that no pending token's window covers."""
        for i, window in enumerate(self.windows):
            begin, first = sequence.held_from[i], window.first(sequence.num_computed)
            if first > begin:
                window.release(sequence.block_ids[begin:first], self._is_cached)
                sequence.held_from[i] = first

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a sequence, last to first, so that a continuation becomes idle
        before the block it continues."""
        for window, first in zip(self.windows, sequence.held_from, strict=True):
            window.release(reversed(sequence.block_ids[first:]), self._is_cached)
        for block in reversed(sequence.block_ids):
            self._release(block)
        sequence.block_ids, sequence.held_from = [], []
        sequence.num_inserted, sequence.last_snapshot = 0, None

    # --- recurrent states -------------------------------------------------------------------------

    def begin(self, sequence: Sequence) -> list[StateCopy]:
        """Initialize a sequence's state from the snapshot after its cached prefix, or with
        zeros."""
        if self.snapshots is None:
            return []
        block_ids = sequence.block_ids[: sequence.num_computed // self.block_size]
        source = self.snapshots.use(block_ids[-1]) if block_ids else None
        return [StateCopy(source, sequence.held_row)]

    def slice_tokens(self, sequence: Sequence, start: int, count: int) -> int:
        """Return how many of `count` pending tokens a slice takes: it ends where a snapshot of the
        states is due."""
        if count == 1 or not self._saves:
            return count
        stop = start + count
        step = self._snapshot_tokens
        for position in (*sequence.snapshots_at, (start // step + 1) * step):
            if start < position < stop:
                stop = position
        whole = stop - stop % self.block_size
        return (whole if start < whole and stop < len(sequence.token_ids) else stop) - start

    def save(self, sequence: Sequence, stop: int) -> StateCopy | None:
        """Return the snapshot due once `stop` tokens of a sequence are computed. It replaces the
        sequence's last one, unless that is lasting."""
        if not self._saves or stop % self.block_size:
            return None
        assert self.snapshots is not None
        index, before = stop // self.block_size - 1, sequence.last_snapshot
        if before is not None and (before + 1) * self.block_size % self._snapshot_tokens:
            self.snapshots.supersede(sequence.block_ids[before])
        slot = self.snapshots.save(sequence.block_ids[index], lasting=stop in sequence.snapshots_at)
        sequence.last_snapshot = index
        return None if slot is None else StateCopy(sequence.held_row, slot)

    def save_all(self, stops: Iterable[tuple[Sequence, int]]) -> tuple[StateCopy, ...]:
        """Return the snapshots due once a step has computed these sequences up to these tokens. If
        two were given the same slot, the last one keeps it."""
        if not self._saves:
            return ()
        copies: dict[int, StateCopy] = {}
        for sequence, stop in stops:
            if (copy := self.save(sequence, stop)) is not None:
                copies[copy.target] = copy
        return tuple(copies.values())

    # --- the prefix cache -------------------------------------------------------------------------

    def reset(self) -> None:
        """Drop every idle block from the prefix cache."""
        if self.prefix is not None:
            self._evicted(self.prefix.clear())

    def _extend_keys(self, sequence: Sequence) -> None:
        extend_keys(sequence.keys, sequence.token_ids, self.block_size, sequence.request.cache_salt)

    def _is_cached(self, block: int) -> bool:
        return self.prefix is not None and self.prefix.contains(block)

    def _share(self, block: int) -> None:
        if self._full.users(block) == 0:
            assert self.prefix is not None, "only a prefix cache leaves blocks idle"
            self.prefix.touch(block)
        self._full.share(block)

    def _release(self, block: int) -> None:
        if self._full.release(block):
            if self.prefix is not None and self.prefix.contains(block):
                self.prefix.release(block)
            else:
                if self.snapshots is not None:  # taken by a step in flight
                    self.snapshots.drop(block)
                self._full.free(block)

    def _evicted(self, block_ids: list[int]) -> None:
        for block in block_ids:
            self._full.free(block)
            for window in self.windows:
                window.drop(block)
            if self.snapshots is not None:
                self.snapshots.drop(block)

    def check(self) -> None:
        """Check the invariants of every group."""
        self._full.check(self.prefix.num_idle if self.prefix is not None else 0)
        for window in self.windows:
            window.check(self._full, self._is_cached)
        if self.snapshots is not None:  # a step in flight saves those of blocks it computes
            self.snapshots.check(lambda b: self._is_cached(b) or self._full.users(b) > 0)

    def check_held(self, sequences: Collection[Sequence]) -> None:
        """Check that these sequences hold all blocks in use, and all that they attend to."""
        held = {block for s in sequences for block in s.block_ids}
        assert len(held) == self.num_used, "a block has no sequence"
        for i, window in enumerate(self.windows):
            assert all(s.held_from[i] <= window.first(s.num_computed) for s in sequences), (
                "a window covers blocks that were released"
            )
            covered = {block for s in sequences for block in s.block_ids[s.held_from[i] :]}
            assert covered <= window.block_of.keys(), "a window covers a block that has none"
            assert len(covered) == window.num_used, "a window's block has no sequence"


def _needs_prompt(sequence: Sequence) -> bool:
    """Whether results for every prompt token are wanted: none can come from the cache."""
    request = sequence.request
    every = request.pooling not in (None, "last", "score")
    return request.params.prompt_logprobs is not None or every
