"""A prefix cache that evicts the least recently used continuation first."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from inferno.contracts import BlocksByKey


@define(eq=False)
class LRUPrefixCache(BlocksByKey):
    """Evicts idle blocks in the order in which they became idle. See `contracts.PrefixCache`."""

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks = []
        for key in keys:
            if (block := self._block_of.get(key)) is None:
                break
            blocks.append(block)
        return blocks

    def release(self, block_id: int) -> None:
        self._idle[block_id] = 0.0  # the order is enough
