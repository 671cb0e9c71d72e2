"""Rank 0's store of blocks, where each rank keeps its part of every block.

Rank 0's index decides. The others are told what becomes of their parts (`messages.StoreCall`), and
save and load with the steps. A part is near once it was fetched on every rank, and only until that
is released: what one rank has let go is no hit, whatever the others have.
"""

from __future__ import annotations

import selectors
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from socket import socket, socketpair
from typing import TYPE_CHECKING, ClassVar, Protocol

from attrs import define, evolve, field

from inferno.contracts import Mover, Placed, StoreIndex, StoreUsage, TieredIndex
from inferno.contracts.cache_events import Tier
from inferno.errors import InfernoError
from inferno.process.ranks import messages
from inferno.process.ranks.messages import Asked, Change, Fetched, StoreCall

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

Part = tuple[bytes, int]
"""A block's content key, and the bit of a cache group."""


class Others(Protocol):
    """The other ranks (`group.Group`)."""

    ranks: int
    """With this one."""

    @property
    def is_over(self) -> bool: ...
    @property
    def descriptor(self) -> int:
        """Readable when `take_told` has something to say."""
        ...

    def send(self, kind: bytes, body: bytes = b"") -> None: ...
    def take_told(self) -> Sequence[Fetched | Asked]:
        """Return what ranks have said of their stores. Raises what has ended one of them."""
        ...

    def changing(self, change: Change) -> AbstractContextManager[None]: ...


@define(eq=False)
class Fetch:
    """A fetch that has not ended on every rank."""

    owner: str
    wanted: Sequence[tuple[bytes, int]]
    left: int
    """How many other ranks have not answered."""
    ended: bool = False
    """Whether it has here."""
    lost: set[Part] = field(factory=set)
    """By others."""


@define(eq=False)
class SharedStore:
    """Both halves of rank 0's store (`StoreIndex`, `Mover`), together with those of the others."""

    is_link: ClassVar[bool] = False
    """Whether it links instances instead of keeping blocks."""
    others: Others
    index: StoreIndex
    mover: Mover
    usage: StoreUsage = field(init=False)
    """Of this rank."""
    _fetches: dict[int, Fetch] = field(factory=dict, init=False)
    _numbers: count[int] = field(factory=count, init=False)
    _holders: Counter[Part] = field(factory=Counter, init=False)
    """How many owners hold a part that is near on all other ranks."""
    _held: dict[str, list[Part]] = field(factory=dict, init=False)
    _lacking: dict[bytes, int] = field(factory=dict, init=False)
    """By key, the groups whose parts another rank has lost: a set of bits."""
    _waits: selectors.DefaultSelector = field(factory=selectors.DefaultSelector, init=False)
    _changed: Callable[[bytes], object] = field(default=lambda key: None, init=False)
    _beside: SharedStore | None = field(default=None, init=False)
    """The link beside tiers, or the tiers beside a link. The others answer both on one wire."""
    _bell: tuple[socket, socket] = field(factory=socketpair, init=False)
    """The second one is readable while an answer that was heard outside of `poll` waits for it."""

    @classmethod
    def of(cls, others: Others, built: tuple[StoreIndex, Mover]) -> SharedStore:
        """Return the store of all ranks, from the first one's, which was built here."""
        return (SharedTiers if isinstance(built[0], TieredIndex) else cls)(others, *built)

    def __attrs_post_init__(self) -> None:
        self.usage = self.index.usage
        for end in self._bell:
            end.setblocking(False)
        self._waits.register(self._bell[1], selectors.EVENT_READ)
        self._waits.register(self.others.descriptor, selectors.EVENT_READ)
        if (handle := self.mover.fileno()) is not None:
            self._waits.register(handle, selectors.EVENT_READ)

    def join(self, other: SharedStore) -> None:
        """Be one of two stores of the same ranks, with one series of numbers of fetches: whichever
        hears the others takes their answers for both."""
        self._beside, other._beside, other._numbers = other, self, self._numbers

    # --- StoreIndex -------------------------------------------------------------------------------

    def groups_of(self, key: bytes) -> int:
        groups, lacking = self.index.groups_of(key), self._lacking.get(key, 0)
        if lacking and not groups:
            del self._lacking[key]
        return groups & ~lacking

    def near(self, key: bytes) -> int:
        groups = rest = self.index.near(key)
        while rest:
            bit = rest & -rest
            rest -= bit
            if (key, bit) not in self._holders:
                groups -= bit
        return groups

    def note(self, placed: Placed) -> None:
        self.index.note(placed)
        if placed.key in self._lacking:
            self._set_lacking(placed.key, self._lacking[placed.key] & ~placed.groups)

    def drop(self, key: bytes) -> None:
        for part in [part for part in self._holders if part[0] == key]:
            del self._holders[part]
        self._set_lacking(key, 0)
        self.index.drop(key)
        self._tell(StoreCall("drop", keys=[key]))

    def touch(self, keys: Sequence[bytes]) -> None:
        self.index.touch(keys)
        if keys:
            self._tell(StoreCall("touch", keys=[*keys]))

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        number = next(self._numbers)
        self._fetches[number] = Fetch(owner, wanted, self.others.ranks - 1)
        keys, groups = [key for key, _ in wanted], [groups for _, groups in wanted]
        self._tell(StoreCall("fetch", owner=owner, keys=keys, groups=groups, number=number))
        self.index.fetch(wanted, owner)

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        self._tell(StoreCall("pin", owner=owner, keys=[*keys], until=until))
        pinned = self.index.pin(keys, owner, until)
        return next((i for i, key in enumerate(keys[:pinned]) if not self.groups_of(key)), pinned)

    def release(self, owner: str) -> None:
        self.index.release(owner)
        for number in [n for n, fetch in self._fetches.items() if fetch.owner == owner]:
            del self._fetches[number]
        for part in self._held.pop(owner, ()):
            if self._holders[part] > 1:
                self._holders[part] -= 1
            else:
                self._holders.pop(part, None)
        self._tell(StoreCall("release", owner=owner))

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self.mover.register(groups)

    def save(self, saves: Sequence[Placed]) -> None:
        self.mover.save(saves)

    def load(self, loads: Sequence[Placed]) -> None:
        self.mover.load(loads)

    def poll(self) -> Sequence[str]:
        if self._bell[1].fileno() < 0:  # it is closed: the next step says so
            return ()
        here = {*self.mover.poll()}
        with suppress(BlockingIOError):
            self._bell[1].recv(1 << 10)
        self._hear(polled=self)
        ended = dict[str, None]()
        for number, fetch in [*self._fetches.items()]:
            fetch.ended |= fetch.owner in here
            if fetch.ended and not fetch.left or self._is_vain(fetch):
                del self._fetches[number]
                self._end(fetch)
                ended[fetch.owner] = None
        waiting = {fetch.owner for fetch in self._fetches.values()}
        return [owner for owner in ended if owner not in waiting]

    def fileno(self) -> int | None:
        return self._waits.fileno()

    def close(self) -> None:
        closing = False
        with suppress(InfernoError):  # the group has ended, and with it the others' stores
            if not self.others.is_over:
                with self.others.changing(Change(action="close_store")):
                    closing = True
                    self.mover.close()
                self.others.take_told()  # drop answers: the next store's numbers are the same
        if not closing:
            self.mover.close()
        self._waits.close()
        for end in self._bell:
            end.close()

    # --- the others -------------------------------------------------------------------------------

    def _tell(self, call: StoreCall) -> None:
        if not self.others.is_over:
            call = evolve(call, linked=self.is_link)
            with suppress(EOFError):  # the next step says why
                self.others.send(messages.STORE, messages.encode(call))

    def _hear(self, polled: SharedStore | None = None) -> None:
        """Take what the others have said, for this store and the one beside it, and ring for the
        next `poll` of each but the one that is `polled` now. Raises what has ended one of the
        others."""
        for told in self.others.take_told():
            for store in (self, self._beside):
                if store is not None and store._take(told) and store is not polled:
                    with suppress(BlockingIOError):  # then it rings already
                        store._bell[0].send(b"\0")

    def _take(self, told: Fetched | Asked) -> bool:
        """Take what was said, and return whether it answers a fetch of this store."""
        if isinstance(told, Asked):
            self._take_asked(told)
            return False
        if (fetch := self._fetches.get(told.number)) is None:  # it was released, or is the other's
            return False
        fetch.left -= 1
        for first, length, groups in told.lost:
            for key, wanted in fetch.wanted[first : first + length]:
                fetch.lost.update(parts_of(key, groups & wanted))
        return True

    def _take_asked(self, told: Asked) -> None:
        """Take what another instance has asked a rank for: only a link has a use for it."""

    def _is_vain(self, fetch: Fetch) -> bool:
        """Whether a fetch need not be waited for."""
        return False

    def _end(self, fetch: Fetch) -> None:
        """Hold what is near on all other ranks: what one has lost is lost for all."""
        held = self._held.setdefault(fetch.owner, [])
        parts = (part for key, groups in fetch.wanted for part in parts_of(key, groups))
        for part in parts:
            if part in fetch.lost:
                self._lose(part)
            else:
                held.append(part)
                self._holders[part] += 1

    def _lose(self, part: Part) -> None:
        key, bit = part
        if self.groups_of(key) & bit:
            self.usage.lost_parts += 1
            self._set_lacking(key, self._lacking.get(key, 0) | bit)

    def _set_lacking(self, key: bytes, groups: int) -> None:
        if groups:
            self._lacking[key] = groups
        else:
            self._lacking.pop(key, None)
        self._changed(key)


class SharedTiers(SharedStore):
    """The same of a store that says which tier has what (`TieredIndex`)."""

    def tiers(self, key: bytes) -> Mapping[Tier, int]:
        assert isinstance(self.index, TieredIndex)
        lacking = self._lacking.get(key, 0)
        return {tier: groups & ~lacking for tier, groups in self.index.tiers(key).items()}

    def watch(self, changed: Callable[[bytes], object]) -> None:
        assert isinstance(self.index, TieredIndex)
        self._changed = changed
        self.index.watch(changed)


def parts_of(key: bytes, groups: int) -> list[Part]:
    """Return the parts of a block in a set of groups."""
    return [(key, 1 << i) for i in range(groups.bit_length()) if groups >> i & 1]
