"""Key/value memory: a pool of block ids, and the tensors behind them."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from inferno.contracts import PrefixCache

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.contracts import CacheTensor


def extend_keys(keys: list[bytes], token_ids: Sequence[int], block_size: int, salt: str = "") -> None:
    """Append the content keys of `token_ids`' full blocks that `keys` does not have yet.

    A key is a hash chain: it names a block's tokens and everything before them, and `salt` from the root on. 128 bits of
    BLAKE2b, so that no request can be crafted to hit another's blocks.
    """
    for index in range(len(keys), len(token_ids) // block_size):
        parent = keys[-1] if keys else hashlib.blake2b(salt.encode(), digest_size=16).digest()
        tokens = array("i", token_ids[index * block_size : (index + 1) * block_size])
        keys.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=16).digest())


@define
class BlockPool:
    """Who holds which block. A block is *free*, *held* by one or more sequences, or *idle*: held by none, but
    remembered by the prefix cache. Knows nothing of tokens or tensors."""

    num_blocks: int
    block_size: int
    prefix: PrefixCache | None = None
    _free: list[int] = field(init=False)
    """A stack: what was given back last is handed out first, so that memory never used stays untouched."""
    _holders: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._holders = [0] * self.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: free ones and idle ones."""
        return len(self._free) + (self.prefix.num_idle if self.prefix is not None else 0)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each held once; idle ones are evicted only when no free one is left."""
        if self.prefix is not None and count > len(self._free):
            self._free.extend(self.prefix.evict(count - len(self._free)))
        assert count <= len(self._free), "the scheduler checks num_available first"
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def hold(self, block_ids: Iterable[int]) -> None:
        """One more sequence uses these held or idle blocks."""
        for block in block_ids:
            if self._holders[block] == 0:
                assert self.prefix is not None, "only a prefix cache leaves blocks idle"
                self.prefix.use(block)
            self._holders[block] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One sequence less uses these; last to first, so that a continuation becomes idle before what it continues."""
        for block in reversed(block_ids):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if self.prefix is not None and self.prefix.keeps(block):
                    self.prefix.release(block)
                else:
                    self._free.append(block)

    def num_idle_among(self, block_ids: Iterable[int]) -> int:
        """How many of these are idle: holding them takes that many from `num_available`."""
        return sum(self._holders[block] == 0 for block in block_ids)

    def forget(self) -> None:
        """Drop every idle block from the prefix cache."""
        if self.prefix is not None:
            self._free.extend(self.prefix.clear())

    def check(self) -> None:
        """The invariant: every block is free, held or idle, and exactly one of them."""
        idle = self.prefix.num_idle if self.prefix is not None else 0
        held = sum(holders > 0 for holders in self._holders)
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert not any(self._holders[block] for block in self._free), "a free block is held"
        assert len(self._free) + idle + held == self.num_blocks, "a block is lost"


@frozen(eq=False)
class KVCache:
    """The tensors behind the blocks: for each attention layer what its backend keeps, (blocks, *shape of one block)."""

    layers: tuple[Mapping[str, Tensor], ...]

    @classmethod
    def allocate(cls, layouts: Sequence[Mapping[str, CacheTensor]], num_blocks: int, device: str) -> KVCache:
        return cls(tuple({name: _zeros(num_blocks, t, device) for name, t in layout.items()} for layout in layouts))


def _zeros(num_blocks: int, tensor: CacheTensor, device: str) -> Tensor:
    import torch

    shape, dtype = (num_blocks, *tensor.shape), getattr(torch, tensor.dtype)
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Pages that the operating system zeroes on first touch: blocks never used cost no memory. `torch.zeros` would write
    # them all: seconds, and the whole budget resident.
    pages = mmap(-1, math.prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
