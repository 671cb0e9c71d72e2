from __future__ import annotations

import heapq
from collections.abc import Sequence


class LoyalCache:
    """What was remembered first stays longest: for a few fixed system prompts. See
    inferno.contracts.PrefixCache.

    A block is remembered after those it continues, so the youngest idle block has no continuation.
    """

    def __init__(self, num_blocks: int) -> None:
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._ages: dict[int, int] = {}
        self._idle: set[int] = set()

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks: list[int] = []
        for key in keys:
            if key not in self._blocks:
                return blocks
            blocks.append(self._blocks[key])
        return blocks

    def insert(self, key: bytes, block_id: int) -> int:
        if key not in self._blocks:
            self._blocks[key], self._keys[block_id] = block_id, key
            self._ages[block_id] = max(self._ages.values(), default=0) + 1
        return self._blocks[key]

    def contains(self, block_id: int) -> bool:
        return block_id in self._keys

    def touch(self, block_id: int) -> None:
        self._idle.remove(block_id)

    def release(self, block_id: int) -> None:
        self._idle.add(block_id)

    def evict(self, count: int) -> list[int]:
        gone = heapq.nlargest(count, self._idle, key=self._ages.__getitem__)
        for block_id in gone:
            self._idle.remove(block_id)
            del self._blocks[self._keys.pop(block_id)], self._ages[block_id]
        return gone

    def clear(self) -> list[int]:
        return self.evict(len(self._idle))
