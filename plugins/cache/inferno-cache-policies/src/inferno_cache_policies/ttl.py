"""A prefix cache in which nothing is found that was idle for too long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from attrs import define, field

from inferno.contracts import BlocksByKey


@define(eq=False)
class AgeCache(BlocksByKey):
    """Evicts blocks in the order in which they became idle. See `contracts.PrefixCache`."""

    ttl: float = field(kw_only=True)
    """Seconds for which an idle block is found."""

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks, oldest = [], time.monotonic() - self.ttl
        for key in keys:
            block = self._block_of.get(key)
            if block is None or self._idle.get(block, oldest) < oldest:
                break
            blocks.append(block)
        return blocks

    def release(self, block_id: int) -> None:
        self._idle[block_id] = time.monotonic()


five_minutes = partial(AgeCache, ttl=300.0)
an_hour = partial(AgeCache, ttl=3600.0)
a_day = partial(AgeCache, ttl=86400.0)
