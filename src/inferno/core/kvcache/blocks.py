"""Block pools: which blocks of a cache group are in use, and by how many sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field


@define
class BlockPool:
    """The blocks of one group: their ids, how many sequences use each, and which are free."""

    num_blocks: int
    _free: list[int] = field(init=False)
    """A stack: the block freed last is reused first, so that unused memory stays untouched."""
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._users = [0] * self.num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def acquire(self) -> int:
        """Take a free block for one sequence."""
        block = self._free.pop()
        self._users[block] = 1
        return block

    def share(self, block: int) -> None:
        """Count one more sequence that uses the block."""
        self._users[block] += 1

    def release(self, block: int) -> bool:
        """Count one sequence less. Returns True if no sequence uses the block any more: the caller
        caches or frees it."""
        self._users[block] -= 1
        return self._users[block] == 0

    def free(self, block: int) -> None:
        """Make a block that no sequence uses available again."""
        self._free.append(block)

    def users(self, block: int) -> int:
        return self._users[block]

    def check(self, idle: Iterable[int] | int) -> None:
        """Check the invariant: every block is free, idle or in use, and only one of these."""
        num_idle = idle if isinstance(idle, int) else len(set(idle))
        used = sum(users > 0 for users in self._users)
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert not any(self._users[block] for block in self._free), "a free block is in use"
        assert self.num_free + num_idle + used == self.num_blocks, "a block is lost"


@define
class WindowBlocks:
    """The blocks of a sliding window's group. There are fewer than in the full group: a full block
    has one while a sequence's window covers it. A cached block keeps it, idle, until the memory is
    needed."""

    num_blocks: int
    block_size: int
    window: int
    """In tokens, the current one included."""
    block_of: dict[int, int] = field(factory=dict, init=False)
    """Full block -> its block in this group."""
    _pool: BlockPool = field(init=False)
    _idle: dict[int, None] = field(factory=dict, init=False)
    """Full blocks in the order in which their blocks became idle."""

    def __attrs_post_init__(self) -> None:
        self._pool = BlockPool(self.num_blocks)

    @property
    def num_available(self) -> int:
        return self._pool.num_free + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def first(self, position: int) -> int:
        """Index of the first block that a query at this position attends to."""
        return max(0, position - self.window + 1) // self.block_size

    def resumable(self, full_blocks: Sequence[int], count: int) -> int:
        """Return `count` if the last window of a prefix of `count` blocks is still cached, else the
        index of the first missing block: no longer prefix can be resumed."""
        indices = range(self.first(count * self.block_size), count)
        return next((i for i in indices if full_blocks[i] not in self.block_of), count)

    def num_idle_among(self, full_blocks: Iterable[int]) -> int:
        return sum(block in self._idle for block in full_blocks)

    def acquire(self, full_blocks: Iterable[int]) -> None:
        """Take a block for each of these, evicting the longest idle ones if none is free."""
        for block in full_blocks:
            if not self._pool.num_free:
                self.drop(next(iter(self._idle)))
            self.block_of[block] = self._pool.acquire()

    def share(self, full_blocks: Iterable[int]) -> None:
        """Count one more sequence that uses these blocks, each of which has one here."""
        for block in full_blocks:
            self._idle.pop(block, None)
            self._pool.share(self.block_of[block])

    def release(self, full_blocks: Iterable[int], cached: Callable[[int], bool]) -> None:
        """Count one sequence less for these blocks. The first given is the first to be evicted."""
        for block in full_blocks:
            if self._pool.release(self.block_of[block]):
                if cached(block):
                    self._idle[block] = None
                else:
                    self._pool.free(self.block_of.pop(block))

    def deduplicate(self, own: int, known: int) -> int:
        """Replace `own`, which one sequence uses, by `known`, which has the same content. Returns
        the block of `known`: its own, or that of `own` if it had lost it."""
        assert self._pool.users(self.block_of[own]) == 1, "a newly computed block has two users"
        if known in self.block_of:
            self.share([known])
            self._pool.release(self.block_of[own])
            self._pool.free(self.block_of.pop(own))
        else:
            self.block_of[known] = self.block_of.pop(own)
        return self.block_of[known]

    def drop(self, full_block: int) -> None:
        """Free the block of an unused full block, if it has one."""
        self._idle.pop(full_block, None)
        if (block := self.block_of.pop(full_block, None)) is not None:
            self._pool.free(block)

    def check(self, full: BlockPool, cached: Callable[[int], bool]) -> None:
        """Check the invariants against the full group's pool."""
        assert len(set(self.block_of.values())) == len(self.block_of), "a block has two owners"
        self._pool.check(self.block_of[block] for block in self._idle)
        for block, own in self.block_of.items():
            users = self._pool.users(own)
            assert users <= full.users(block), "a window covers a block that is not held"
            assert users > 0 or block in self._idle, "a block is neither used nor idle"
            assert not (users > 0 and block in self._idle), "an idle block is used"
        assert all(map(cached, self._idle)), "an idle block cannot be found"
