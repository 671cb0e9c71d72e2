"""A prefix cache with pins, around that of any policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field

from inferno.contracts import PrefixCache


@define(eq=False)
class PinnedCache:
    """Keeps idle blocks whose keys are pinned away from the cache inside, which takes them for used
    ones until their last pin ends. Keys are pinned with all keys before them, so a pinned block's
    predecessors are pinned too. See `contracts.Sessions`."""

    inside: PrefixCache
    give: Callable[[], None]
    """Ends one pin. Called while too few other blocks are idle."""
    _pins: dict[bytes, int] = field(factory=dict, init=False)
    """How often each key is pinned, cached or not."""
    _block_of: dict[bytes, int] = field(factory=dict, init=False)
    _key_of: dict[int, bytes] = field(factory=dict, init=False)
    _kept: set[int] = field(factory=set, init=False)
    """Idle blocks that are pinned."""
    _idle: set[int] = field(factory=set, init=False)
    """Those that are idle to the cache inside."""

    @property
    def num_idle(self) -> int:
        return len(self._kept) + self.inside.num_idle

    def match(self, keys: Sequence[bytes]) -> list[int]:
        return self.inside.match(keys)

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        known = self.inside.insert(key, block_id, parent)
        if known == block_id and self.inside.contains(block_id):
            self._block_of[key], self._key_of[block_id] = block_id, key
        return known

    def contains(self, block_id: int) -> bool:
        return self.inside.contains(block_id)

    def touch(self, block_id: int) -> None:
        if block_id in self._kept:
            self._kept.remove(block_id)
        else:
            self._idle.remove(block_id)
            self.inside.touch(block_id)

    def release(self, block_id: int) -> None:
        if self._key_of[block_id] in self._pins:
            self._kept.add(block_id)
        else:
            self._release(block_id)

    def evict(self, count: int) -> list[int]:
        wanted = min(count, self.num_idle)
        while self.inside.num_idle < wanted:
            self.give()
        return self._forgotten(self.inside.evict(count))

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        for block in self._kept.intersection(block_ids):
            self._kept.remove(block)
            self._release(block)
        return self._forgotten(self.inside.drop(block_ids))

    def clear(self) -> list[int]:
        for block in self._kept:
            self._release(block)
        self._kept.clear()
        return self._forgotten(self.inside.clear())

    # --- pins -------------------------------------------------------------------------------------

    def pin(self, key: bytes) -> None:
        """Pin a key once more."""
        count = self._pins.get(key, 0)
        self._pins[key] = count + 1
        if not count and (block := self._block_of.get(key)) in self._idle:
            assert block is not None, "None is not idle"
            self._idle.remove(block)
            self.inside.touch(block)
            self._kept.add(block)

    def unpin(self, key: bytes) -> None:
        """End one pin of a key. Those of its continuations end before."""
        if (count := self._pins[key] - 1) > 0:
            self._pins[key] = count
            return
        del self._pins[key]
        if (block := self._block_of.get(key)) in self._kept:
            assert block is not None, "None is not kept"
            self._kept.remove(block)
            self._release(block)

    def holds(self, key: bytes) -> bool:
        """Whether a block is cached under the key."""
        return key in self._block_of

    def idle(self, key: bytes) -> int | None:
        """Return the block of a key, if it is cached and idle."""
        block = self._block_of.get(key)
        return block if block in self._kept or block in self._idle else None

    def _release(self, block_id: int) -> None:
        self._idle.add(block_id)
        self.inside.release(block_id)

    def _forgotten(self, block_ids: list[int]) -> list[int]:
        for block in block_ids:
            self._idle.remove(block)
            del self._block_of[self._key_of.pop(block)]
        return block_ids

    def check(self) -> None:
        """Check the invariants, for tests."""
        assert self.inside.num_idle == len(self._idle), "an idle block was lost"
        assert all(self._key_of[block] in self._pins for block in self._kept), "kept without a pin"
        assert not any(self._key_of[block] in self._pins for block in self._idle), "pinned and idle"
