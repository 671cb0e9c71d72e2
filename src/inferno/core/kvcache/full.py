"""The group of layers that attend to all tokens."""

from __future__ import annotations

from attrs import frozen

from inferno.core.kvcache.group import CacheGroup
from inferno.core.types import BlockUpdate, Sequence


@frozen
class FullGroup(CacheGroup):
    """Stores every block there can be, in the place of the same number: it only tells the runner
    which blocks a row has."""

    index: int = 0

    def acquire(self, sequence: Sequence, first: int) -> list[BlockUpdate]:
        group, row, blocks = self.index, sequence.held_row, sequence.block_ids
        return [BlockUpdate(group, row, i, blocks[i]) for i in range(first, len(blocks))]

    def needs(self, count: int) -> range:
        return range(count)

    def place(self, block: int) -> int | None:
        return block
