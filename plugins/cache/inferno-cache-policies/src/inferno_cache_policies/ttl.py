"""A prefix cache in which nothing is found that was idle for too long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from attrs import define, field


@define(eq=False)
class AgeCache:
    """Evicts blocks in the order in which they became idle. See `contracts.PrefixCache`."""

    ttl: float
    """Seconds for which an idle block is found."""
    num_blocks: int
    _block_of: dict[bytes, int] = field(factory=dict, init=False)
    _key_of: dict[int, bytes] = field(factory=dict, init=False)
    _idle: dict[int, float] = field(factory=dict, init=False)
    """When each idle block became so, in that order."""

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks, oldest = [], time.monotonic() - self.ttl
        for key in keys:
            block = self._block_of.get(key)
            if block is None or self._idle.get(block, oldest) < oldest:
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
        self._idle[block_id] = time.monotonic()

    def evict(self, count: int) -> list[int]:
        return self.drop([block for block, _ in zip(self._idle, range(count), strict=False)])

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        for block in block_ids:
            del self._idle[block]
            del self._block_of[self._key_of.pop(block)]
        return list(block_ids)

    def clear(self) -> list[int]:
        return self.evict(self.num_idle)


five_minutes = partial(AgeCache, 300.0)
an_hour = partial(AgeCache, 3600.0)
a_day = partial(AgeCache, 86400.0)
