"""A prefix cache that evicts the least recently used continuation first."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field


@define
class LRUPrefixCache:
    """Evicts idle blocks in the order in which they became idle.

    That order never evicts a block before its continuations: a sequence that uses a block uses all
    blocks before it, and releases them last to first. See `contracts.PrefixCache`.
    """

    num_blocks: int
    _block_of: dict[bytes, int] = field(factory=dict, init=False)
    _key_of: dict[int, bytes] = field(factory=dict, init=False)
    _idle: dict[int, None] = field(factory=dict, init=False)
    """In the order in which they became idle; a dict as an ordered set."""

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks = []
        for key in keys:
            if (block := self._block_of.get(key)) is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        known = self._block_of.setdefault(key, block_id)
        if known == block_id:
            self._key_of[block_id] = key
        return known

    def contains(self, block_id: int) -> bool:
        return block_id in self._key_of

    def touch(self, block_id: int) -> None:
        del self._idle[block_id]

    def release(self, block_id: int) -> None:
        self._idle[block_id] = None

    def evict(self, count: int) -> list[int]:
        return self.drop([block for block, _ in zip(self._idle, range(count), strict=False)])

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        for block in block_ids:
            del self._idle[block]
            del self._block_of[self._key_of.pop(block)]
        return list(block_ids)

    def clear(self) -> list[int]:
        return self.evict(self.num_idle)
