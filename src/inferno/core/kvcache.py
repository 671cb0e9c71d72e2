"""Key/value memory: a pool of block ids, the window blocks of layers with a sliding window, and the
tensors behind them."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from inferno.contracts import PrefixCache

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.contracts import CacheTensor


def extend_keys(
    keys: list[bytes], token_ids: Sequence[int], block_size: int, salt: str = ""
) -> None:
    """Append the content keys of `token_ids`' full blocks that `keys` does not have yet.

    A key is a hash chain: it names a block's tokens and everything before them, and `salt` from the
    root on. 128 bits of BLAKE2b, so that no request can be crafted to hit another's blocks.
    """
    for index in range(len(keys), len(token_ids) // block_size):
        parent = keys[-1] if keys else hashlib.blake2b(salt.encode(), digest_size=16).digest()
        tokens = array("i", token_ids[index * block_size : (index + 1) * block_size])
        keys.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=16).digest())


@define
class WindowPool:
    """Window blocks: what the layers of one sliding window keep of a block. There are fewer of them
    than blocks. A block has one while a sequence may look at its tokens, and then, if the prefix
    cache remembers the block, until the room is needed: it is *idle*."""

    window: int
    """In tokens, the current one included."""
    num_blocks: int
    block_size: int
    owned: dict[int, int] = field(factory=dict, init=False)
    """Block -> its window block."""
    _holders: dict[int, int] = field(factory=dict, init=False)
    """Block -> how many sequences may look at its tokens; no entry where none."""
    _idle: dict[int, None] = field(factory=dict, init=False)
    """Blocks in the order in which their window blocks became idle."""
    _free: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        return len(self._holders)

    def first(self, position: int) -> int:
        """The place of the first block that a query at this position looks at."""
        return max(0, position - self.window + 1) // self.block_size

    def usable(self, block_ids: Sequence[int], count: int) -> int:
        """`count`, if a sequence could go on after so many blocks: what its next token looks at is
        there. Else the place of the first that is missing: it cannot go on after any more than
        that."""
        places = range(self.first(count * self.block_size), count)
        return next((place for place in places if block_ids[place] not in self.owned), count)

    def num_idle_among(self, block_ids: Iterable[int]) -> int:
        return sum(block in self._idle for block in block_ids)

    def allocate(self, block_ids: Iterable[int]) -> None:
        """A window block, held once, for each of these; the longest idle are taken only when no
        free one is left."""
        for block in block_ids:
            if not self._free:
                self.drop(next(iter(self._idle)))
            self.owned[block], self._holders[block] = self._free.pop(), 1

    def hold(self, block_ids: Iterable[int]) -> None:
        """One more sequence may look at these, which all have a window block."""
        for block in block_ids:
            self._idle.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def release(self, block_ids: Iterable[int], remembers: Callable[[int], bool]) -> None:
        """One sequence less looks at these. What comes first is taken first when the room is
        needed."""
        for block in block_ids:
            if (holders := self._holders.pop(block) - 1) > 0:
                self._holders[block] = holders
            elif remembers(block):
                self._idle[block] = None
            else:
                self.drop(block)

    def exchange(self, own: int, known: int) -> int:
        """A sequence that alone looks at `own` goes on with `known`, which has the same content.
        Returns its window block."""
        assert self._holders[own] == 1, "two sequences look at a block that was just computed"
        if known in self.owned:
            self.hold([known])
            del self._holders[own]
            self.drop(own)
        else:
            self.owned[known], self._holders[known] = self.owned.pop(own), self._holders.pop(own)
        return self.owned[known]

    def drop(self, block: int) -> None:
        """Take the window block of a block that no sequence looks at, if it has one."""
        self._idle.pop(block, None)
        if (freed := self.owned.pop(block, None)) is not None:
            self._free.append(freed)

    def check(self, holders: Sequence[int], remembers: Callable[[int], bool]) -> None:
        """The invariants, given how many sequences hold each block."""
        everyone = sorted([*self._free, *self.owned.values()])
        assert everyone == list(range(self.num_blocks)), "a window block is lost or owned twice"
        assert self._idle.keys() | self._holders.keys() == self.owned.keys(), (
            "a window block is neither held nor idle"
        )
        assert not self._idle.keys() & self._holders.keys(), "an idle window block is held"
        assert all(0 < n <= holders[block] for block, n in self._holders.items()), (
            "a block is looked at, but not held"
        )
        assert all(map(remembers, self._idle)), "nobody can find an idle window block"


@define
class BlockPool:
    """Who holds which block. A block is *free*, *held* by one or more sequences, or *idle*: held by
    none, but remembered by the prefix cache. Knows nothing of tokens or tensors.

    Of each window in `window_blocks` (tokens -> window blocks there are), a sequence holds the
    window blocks from a place on that moves with it: `hold` tells where it begins, `slide` moves
    it, `release` ends it.
    """

    num_blocks: int
    block_size: int
    prefix: PrefixCache | None = None
    _window_blocks: Mapping[int, int] = field(factory=dict)
    windows: tuple[WindowPool, ...] = field(init=False)
    _free: list[int] = field(init=False)
    """A stack: what was given back last is handed out first, so that memory never used stays
    untouched."""
    _holders: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._holders = [0] * self.num_blocks
        self.windows = tuple(
            WindowPool(window, n, self.block_size) for window, n in self._window_blocks.items()
        )

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: free ones and idle ones, and no more than there
        are window blocks for."""
        return min((self._num_unheld, *(window.num_available for window in self.windows)))

    @property
    def _num_unheld(self) -> int:
        return len(self._free) + (self.prefix.num_idle if self.prefix is not None else 0)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self._num_unheld

    @property
    def usage(self) -> float:
        """Share that sequences hold, 0 to 1: of the blocks, or of a window's, whichever is nearer
        its end."""
        return max(
            (self.num_held / self.num_blocks, *(w.num_held / w.num_blocks for w in self.windows))
        )

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each held once, with their window blocks; idle ones are evicted only when
        no free one is left."""
        if self.prefix is not None and count > len(self._free):
            self._forgotten(self.prefix.evict(count - len(self._free)))
        assert count <= len(self._free), "the scheduler checks num_available first"
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        for window in self.windows:
            window.allocate(blocks)
        return blocks

    def usable(self, block_ids: list[int]) -> list[int]:
        """The longest beginning of a chain after which a sequence may go on: what its next token
        looks at is still there."""
        count, before = len(block_ids), -1
        while count != before:
            before = count
            for window in self.windows:
                count = window.usable(block_ids, count)
        return block_ids[:count]

    def hold(self, block_ids: Sequence[int]) -> list[int]:
        """One more sequence begins with these `usable` held or idle blocks. Returns the place of
        the first window block that it holds, by window."""
        self._hold(block_ids)
        starts = [window.first(len(block_ids) * self.block_size) for window in self.windows]
        for window, start in zip(self.windows, starts, strict=True):
            window.hold(block_ids[start:])
        return starts

    def _hold(self, block_ids: Iterable[int]) -> None:
        for block in block_ids:
            if self._holders[block] == 0:
                assert self.prefix is not None, "only a prefix cache leaves blocks idle"
                self.prefix.use(block)
            self._holders[block] += 1

    def slide(self, block_ids: Sequence[int], window_starts: list[int], num_computed: int) -> None:
        """A sequence has computed so many tokens: it lets go of the window blocks that none to come
        looks at. Moves `window_starts`."""
        for i, window in enumerate(self.windows):
            if (first := window.first(num_computed)) > window_starts[i]:
                window.release(block_ids[window_starts[i] : first], self._remembers)
                window_starts[i] = first

    def exchange(self, own: int, known: int) -> list[int]:
        """A sequence goes on with `known` instead of `own`, which it has just computed and which
        has the same content. Returns its window block in each window. They may be what `own` had:
        `known` may have lost them, and gets them back."""
        window_blocks = [window.exchange(own, known) for window in self.windows]
        self._hold([known])
        self._release([own])
        return window_blocks

    def release(self, block_ids: Sequence[int], window_starts: Sequence[int] = ()) -> None:
        """One sequence less uses these; last to first, so that a continuation becomes idle before
        what it continues."""
        for window, start in zip(self.windows, window_starts, strict=True):
            window.release(reversed(block_ids[start:]), self._remembers)
        self._release(block_ids)

    def _release(self, block_ids: Sequence[int]) -> None:
        for block in reversed(block_ids):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if self.prefix is not None and self.prefix.keeps(block):
                    self.prefix.release(block)
                else:
                    self._free.append(block)

    def num_available_beside(self, block_ids: Sequence[int]) -> int:
        """`num_available` when one more sequence will have begun with these: those that were idle
        are no longer available."""
        first = len(block_ids) * self.block_size
        idle = sum(self._holders[block] == 0 for block in block_ids)
        return min(
            (
                self._num_unheld - idle,
                *(
                    w.num_available - w.num_idle_among(block_ids[w.first(first) :])
                    for w in self.windows
                ),
            )
        )

    def _remembers(self, block: int) -> bool:
        return self.prefix is not None and self.prefix.keeps(block)

    def forget(self) -> None:
        """Drop every idle block from the prefix cache."""
        if self.prefix is not None:
            self._forgotten(self.prefix.clear())

    def _forgotten(self, block_ids: list[int]) -> None:
        self._free.extend(block_ids)
        for window in self.windows:
            for block in block_ids:
                window.drop(block)

    def check(self) -> None:
        """The invariant: every block is free, held or idle, and exactly one of them; and so are the
        window blocks."""
        idle = self.prefix.num_idle if self.prefix is not None else 0
        held = sum(holders > 0 for holders in self._holders)
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert not any(self._holders[block] for block in self._free), "a free block is held"
        assert len(self._free) + idle + held == self.num_blocks, "a block is lost"
        for window in self.windows:
            window.check(self._holders, self._remembers)


@frozen(eq=False)
class KVCache:
    """The tensors behind the blocks: for each attention layer what its backend keeps, (blocks,
    *shape of one block). A layer whose window has window blocks has as many as there are of
    these."""

    layers: tuple[Mapping[str, Tensor], ...]

    @classmethod
    def allocate(
        cls,
        layouts: Sequence[Mapping[str, CacheTensor]],
        num_blocks: int | Sequence[int],
        device: str,
    ) -> KVCache:
        """One layout for each layer; so many blocks for all of them, or for each."""
        counts = [num_blocks] * len(layouts) if isinstance(num_blocks, int) else num_blocks
        return cls(
            tuple(
                {name: _zeros(count, tensor, device) for name, tensor in layout.items()}
                for layout, count in zip(layouts, counts, strict=True)
            )
        )


def _zeros(num_blocks: int, tensor: CacheTensor, device: str) -> Tensor:
    import torch

    shape, dtype = (num_blocks, *tensor.shape), getattr(torch, tensor.dtype)
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Pages that the operating system zeroes on first touch: blocks never used cost no memory.
    # `torch.zeros` would write them all: seconds, and the whole budget resident.
    pages = mmap(-1, math.prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
