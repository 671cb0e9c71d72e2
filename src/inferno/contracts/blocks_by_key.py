"""What prefix caches share that evict blocks in the order in which they became idle."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field


@define(eq=False)
class BlocksByKey:
    """The blocks of a prefix cache, and which of them are idle. A cache adds what it finds
    (`match`), and what it notes of a block that becomes idle (`release`). See `PrefixCache`.

    That order never evicts a block before its continuations: a sequence that uses a block uses all
    blocks before it, and releases them last to first.
    """

    num_blocks: int
    _block_of: dict[bytes, int] = field(factory=dict, init=False)
    _key_of: dict[int, bytes] = field(factory=dict, init=False)
    _idle: dict[int, float] = field(factory=dict, init=False)
    """In the order in which they became idle, each with when that was, for caches that ask."""

    @property
    def num_idle(self) -> int:
        """Number of idle blocks."""
        return len(self._idle)

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        """Cache a used block, unless its key has one. Returns the one that the key has."""
        known = self._block_of.setdefault(key, block_id)
        if known == block_id:
            self._key_of[block_id] = key
        return known

    def contains(self, block_id: int) -> bool:
        """Whether the block is cached."""
        return block_id in self._key_of

    def touch(self, block_id: int) -> None:
        """Mark an idle block as used."""
        del self._idle[block_id]

    def evict(self, count: int) -> list[int]:
        """Remove and return the blocks that were idle longest."""
        return self.drop([block for block, _ in zip(self._idle, range(count), strict=False)])

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        """Remove these idle blocks, and return them."""
        for block in block_ids:
            del self._idle[block]
            del self._block_of[self._key_of.pop(block)]
        return list(block_ids)

    def clear(self) -> list[int]:
        """Remove and return every idle block."""
        return self.evict(self.num_idle)
