"""Prefix caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import field, frozen

from inferno.contracts import lazy


class PrefixCache(Protocol):
    """Maps content keys to blocks. It sees ids and keys, neither tokens nor tensors; the kernel
    owns the blocks. A key names a full block's tokens *and everything before them*
    (`extend_keys`).

    A cached block is *used* while some sequence holds it, else *idle*: still found, and evictable.
    """

    @property
    def num_idle(self) -> int:
        """Blocks that `evict` could give back. Changes nothing."""
        ...

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix of `keys`. Changes nothing; valid until the next
        `evict`."""
        ...

    def insert(self, key: bytes, block_id: int) -> int:
        """Cache a full, used block. Returns the block that holds the key from now on: `block_id`,
        or one that was cached before, in which case nothing changes and the caller uses that
        one."""
        ...

    def contains(self, block_id: int) -> bool:
        """Whether the block is cached. Changes nothing."""
        ...

    def touch(self, block_id: int) -> None:
        """The idle block is used again: it can no longer be evicted."""
        ...

    def release(self, block_id: int) -> None:
        """No sequence uses the cached block any more: it becomes idle. A sequence's blocks come
        last to first."""
        ...

    def evict(self, count: int) -> list[int]:
        """Remove `count` idle blocks (all, when fewer), least useful first and never one whose
        continuation is still cached; returns them."""
        ...

    def clear(self) -> list[int]:
        """Remove every idle block; returns them."""
        ...


@frozen(kw_only=True)
class CachePolicy:
    """A prefix cache by name. The one of the highest priority is the default."""

    name: str
    build: Callable[[int], PrefixCache | None] = field(converter=lazy.function)
    """build(num_blocks); None caches nothing. Imports no torch."""
    priority: int = 0
    api_version: int = 1
