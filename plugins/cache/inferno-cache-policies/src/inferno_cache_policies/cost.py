"""A prefix cache that evicts first what costs least to compute again."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import count

from attrs import define, field

ATTENTION_DEPTH = 1024
"""Blocks before one at which its attention costs as much as its matrices."""


@define(eq=False)
class Node:
    """A cached block."""

    block: int
    key: bytes
    parent: bytes | None
    depth: int
    uses: int = 1
    """How often a sequence came to use it."""
    worth: float = 0.0
    """As of when it became idle."""
    is_idle: bool = False
    entry: int = -1
    """Its valid entry among the leaves; -1: none."""

    @property
    def cost(self) -> float:
        """What computing it again costs, in units of a block without attention."""
        return 1 + self.depth / ATTENTION_DEPTH


@define(eq=False)
class CostCache:
    """Evicts the idle block of the least worth that nothing cached continues: its uses times its
    cost, above the worth of what was evicted before it became idle. See `contracts.PrefixCache`."""

    num_blocks: int
    num_idle: int = field(default=0, init=False)
    _by_key: dict[bytes, Node] = field(factory=dict, init=False)
    _by_block: dict[int, Node] = field(factory=dict, init=False)
    _children: Counter[bytes] = field(factory=Counter, init=False)
    """By key, how many cached blocks continue it, whether it is cached or not."""
    _leaves: list[tuple[float, int, Node]] = field(factory=list, init=False)
    """A heap of idle blocks without children, with entries that are not valid any more."""
    _entries: count[int] = field(factory=count, init=False)
    _floor: float = field(default=0.0, init=False)
    """The most worth that was evicted, so that what was worth much long ago goes too."""

    def match(self, keys: Sequence[bytes]) -> list[int]:
        blocks = []
        for key in keys:
            if (node := self._by_key.get(key)) is None:
                break
            blocks.append(node.block)
        return blocks

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        if (known := self._by_key.get(key)) is not None:
            return known.block
        before = None if parent is None else self._by_key.get(parent)
        node = Node(block_id, key, parent, 0 if before is None else before.depth + 1)
        self._by_key[key] = self._by_block[block_id] = node
        if parent is not None:
            self._children[parent] += 1
        return block_id

    def contains(self, block_id: int) -> bool:
        return block_id in self._by_block

    def touch(self, block_id: int) -> None:
        node = self._by_block[block_id]
        node.is_idle, node.entry = False, -1
        node.uses += 1
        self.num_idle -= 1

    def release(self, block_id: int) -> None:
        node = self._by_block[block_id]
        node.is_idle, node.worth = True, self._floor + node.uses * node.cost
        self.num_idle += 1
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Let a block be evicted, if nothing continues it."""
        if node.is_idle and not self._children[node.key]:
            node.entry = next(self._entries)
            heapq.heappush(self._leaves, (node.worth, node.entry, node))
            if len(self._leaves) > 2 * self.num_idle + 64:
                self._leaves = [each for each in self._leaves if each[2].entry == each[1]]
                heapq.heapify(self._leaves)

    def evict(self, count: int) -> list[int]:
        gone: list[int] = []
        while len(gone) < count and self._leaves:
            worth, entry, node = heapq.heappop(self._leaves)
            if entry == node.entry:
                self._floor = max(self._floor, worth)
                gone += self.drop([node.block])
        return gone

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        for block in block_ids:
            node = self._by_block.pop(block)
            del self._by_key[node.key]
            node.entry = -1
            self.num_idle -= 1
            if node.parent is None:
                continue
            self._children[node.parent] -= 1
            if not self._children[node.parent]:
                del self._children[node.parent]
                if (before := self._by_key.get(node.parent)) is not None:
                    self._offer(before)
        return list(block_ids)

    def clear(self) -> list[int]:
        return self.drop([block for block, node in self._by_block.items() if node.is_idle])
