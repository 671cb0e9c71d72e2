"""The protocol of prefix caches, and the policies that offer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import field, frozen

from inferno.contracts import lazy


class PrefixCache(Protocol):
    """Maps content keys to blocks. It sees ids and keys, neither tokens nor tensors; the kernel
    owns the blocks. A key identifies a full block's tokens *and everything before them*
    (`extend_keys`).

    A cached block is *used* while a sequence holds it, else *idle*: `match` still finds it, and
    `evict` may remove it.
    """

    @property
    def num_idle(self) -> int:
        """Number of blocks that `evict` could remove."""
        ...

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix of `keys`. Changes nothing; valid until
        the next `evict`."""
        ...

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        """Cache a full, used block. `parent` is the key of the block that it continues; None: it is
        the first. Returns the block that is now cached under the key: `block_id`, or the one that
        already was; then nothing changes and the caller uses that one."""
        ...

    def contains(self, block_id: int) -> bool:
        """Whether the block is cached."""
        ...

    def touch(self, block_id: int) -> None:
        """Mark an idle block as used: it can no longer be evicted."""
        ...

    def release(self, block_id: int) -> None:
        """Mark a cached block as idle: no sequence uses it any more. A sequence's blocks are
        released last to first."""
        ...

    def evict(self, count: int) -> list[int]:
        """Remove and return `count` idle blocks (all, if there are fewer), least useful first, and
        never one whose continuation is still cached."""
        ...

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        """Remove these idle blocks, whose content is to be forgotten, even if a continuation is
        still cached: it is found again once they are computed again. Returns those removed."""
        ...

    def clear(self) -> list[int]:
        """Remove and return every idle block."""
        ...


@frozen(kw_only=True)
class CachePolicy:
    """A kind of prefix cache. The one with the highest priority is the default."""

    name: str
    build: Callable[[int], PrefixCache | None] = field(converter=lazy.function)
    """build(num_blocks) -> the cache, or None to cache nothing. Imports no torch."""
    priority: int = 0
    api_version: int = 2
    """Version 1 had no `drop`, and `insert` no `parent`: its caches are adapted."""
