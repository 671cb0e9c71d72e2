"""Which adapter is in which slot. Knows no matrices."""

from __future__ import annotations

from attrs import define, field


@define(eq=False)
class AdapterSlots:
    """Slots, counted by the running sequences that use them. One that nobody uses keeps its adapter
    until another needs it."""

    count: int = 0
    freed: bool = False
    """Whether a slot has lost its last user since `Admission` looked."""
    _slot_of: dict[str, int] = field(factory=dict)
    """By digest, least recently taken first."""
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def has_room(self, digest: str) -> bool:
        """Whether a sequence with this adapter may run: it is in a slot, or one is free."""
        return not digest or digest in self._slot_of or self._free() is not None

    def take(self, digest: str) -> int:
        """Return the slot of the adapter for one more user; -1 without an adapter."""
        if not digest:
            return -1
        slot = self._slot_of.pop(digest, None)
        if slot is None:
            slot = self._free()
            assert slot is not None, "`has_room` was asked"
            self._slot_of = {each: at for each, at in self._slot_of.items() if at != slot}
        self._slot_of[digest] = slot
        self._users[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back, if it is one."""
        if slot >= 0:
            self._users[slot] -= 1
            self.freed |= not self._users[slot]

    def _free(self) -> int | None:
        """Return a slot without users: an empty one, else the one that was taken longest ago."""
        occupied = [*self._slot_of.values()]
        empty = (slot for slot in range(self.count) if slot not in occupied)
        idle = (slot for slot in occupied if not self._users[slot])
        return next(empty, next(idle, None))
