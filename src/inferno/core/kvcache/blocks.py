"""Pools of numbers: which are in use, and by how many sequences."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field


@define
class BlockPool:
    """Blocks, or the places of a group: how many sequences use each, and which are free."""

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
