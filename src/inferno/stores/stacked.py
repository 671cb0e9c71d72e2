"""Tiers of blocks and one end of a link, as one store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, cast

from attrs import define, field, fields

from inferno.contracts import (
    LinkedPrompt,
    LinkIndex,
    Mover,
    Placed,
    StoreIndex,
    StoreUsage,
    TieredIndex,
)
from inferno.contracts.cache_events import Tier

if TYPE_CHECKING:
    from torch import Tensor


_OF_LINKS = ("fallbacks", "instances")
"""Fields of StoreUsage that only links fill."""


@define(eq=False)
class Saving:
    """The saves of one of the two stores."""

    index: StoreIndex
    mover: Mover
    _noted: dict[bytes, int] = field(factory=dict, init=False)
    """By key, the groups whose parts it is to save in the next step: sets of bits."""

    def note(self, placed: Placed) -> None:
        if lacking := placed.groups & ~self.index.groups_of(placed.key):
            self._noted[placed.key] = self._noted.get(placed.key, 0) | lacking
            self.index.note(only(placed, lacking))

    def drop(self, key: bytes) -> None:
        self._noted.pop(key, None)

    def save(self, saves: Sequence[Placed]) -> None:
        own = list[Placed]()
        for placed in saves:
            noted = self._noted.pop(placed.key, 0)
            if left := noted & ~placed.groups:
                self._noted[placed.key] = left
            if taken := noted & placed.groups:
                own.append(only(placed, taken))
        if own:
            self.mover.save(own)


@define(eq=False)
class Stacked:
    """Both halves (`StoreIndex`, `LinkIndex`, `Mover`).

    A part is stored if the tiers have it: they are told of all parts that are saved, looked for or
    pinned. It is near if the tiers or the link have it near, and comes from the link only if it is
    not near in the tiers. In the end that computes prompts, saves go to the link too, which takes
    the parts that were asked for. What one of the two loads, the other saves if it lacks it.
    """

    tiers_index: StoreIndex
    tiers_mover: Mover
    link_index: StoreIndex
    link_mover: Mover
    sends: bool
    """Whether the link is the end that computes prompts."""
    _saving: list[Saving] = field(init=False)
    _awaited: dict[str, set[str]] = field(factory=dict, init=False)
    """By owner, which of the two `poll` still waits for."""
    _waits: DefaultSelector = field(factory=DefaultSelector, init=False)

    @classmethod
    def of(
        cls, tiers: tuple[StoreIndex, Mover], link: tuple[StoreIndex, Mover], *, sends: bool
    ) -> tuple[StoreIndex, Mover]:
        """Return one store of two."""
        kind = StackedTiers if isinstance(tiers[0], TieredIndex) else cls
        stacked = kind(*tiers, *link, sends)
        return stacked, stacked

    def __attrs_post_init__(self) -> None:
        self._saving = [Saving(self.tiers_index, self.tiers_mover)]
        if self.sends:
            self._saving.append(Saving(self.link_index, self.link_mover))
        for mover in (self.tiers_mover, self.link_mover):
            if (handle := mover.fileno()) is not None:
                self._waits.register(handle, EVENT_READ)

    # --- LinkIndex --------------------------------------------------------------------------------

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.link_index)

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> bool:
        is_sent = self.link.ask(prompt, keys, wanted)
        if is_sent:
            self._awaited.setdefault(prompt.id, set()).add("link")
        return is_sent

    @property
    def is_asked(self) -> bool:
        return self.link.is_asked

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        return self.link.take_asked()

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        self.link.begin(prompt_id, keys)

    def end(self, prompt_id: str, error: str = "") -> None:
        self.link.end(prompt_id, error)

    # --- StoreIndex -------------------------------------------------------------------------------

    @property
    def usage(self) -> StoreUsage:
        """Of both, as of now."""
        tiers, link = self.tiers_index.usage, self.link_index.usage
        names = [each.name for each in fields(StoreUsage) if each.name not in _OF_LINKS]
        sums = {name: getattr(tiers, name) + getattr(link, name) for name in names}
        return StoreUsage(**sums, fallbacks=link.fallbacks, instances=link.instances)

    def groups_of(self, key: bytes) -> int:
        return self.tiers_index.groups_of(key)

    def near(self, key: bytes) -> int:
        return self.tiers_index.near(key) | self.link_index.near(key)

    def note(self, placed: Placed) -> None:
        for each in self._saving:
            each.note(placed)

    def needless(self, key: bytes) -> int:
        """Return the groups whose parts of a block need not be saved."""
        return reduce(and_, (each.index.groups_of(key) for each in self._saving))

    def drop(self, key: bytes) -> None:
        for each in self._saving:
            each.drop(key)
        self.tiers_index.drop(key)
        self.link_index.drop(key)

    def touch(self, keys: Sequence[bytes]) -> None:
        self.tiers_index.touch(keys)

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        """Hold parts that only the link has near, and fetch the others from the tiers."""
        come = [(key, groups & self._come(key)) for key, groups in wanted]
        held = [(key, groups) for key, groups in come if groups]
        pairs = zip(wanted, come, strict=True)
        others = [(key, rest) for (key, groups), (_, own) in pairs if (rest := groups & ~own)]
        awaited = self._awaited.setdefault(owner, set())
        if held:
            awaited.add("link")
            self.link_index.fetch(held, owner)
        if others or not held:
            awaited.add("tiers")
            self.tiers_index.fetch(others, owner)

    def hold(self, near: Sequence[tuple[bytes, int]], owner: str) -> None:
        """Keep parts near that the tiers have near, until `release`. `poll` does not tell of it."""
        self.tiers_index.fetch(near, owner)

    def _come(self, key: bytes) -> int:
        """Return the groups whose parts of a block only the link has near."""
        come = self.link_index.near(key)
        return come & ~self.tiers_index.near(key) if come else 0

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        return self.tiers_index.pin(keys, owner, until)

    def release(self, owner: str) -> None:
        self._awaited.pop(owner, None)
        self.tiers_index.release(owner)
        self.link_index.release(owner)

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self.tiers_mover.register(groups)
        self.link_mover.register(groups)

    def save(self, saves: Sequence[Placed]) -> None:
        for each in self._saving:
            each.save(saves)

    def load(self, loads: Sequence[Placed]) -> None:
        come = [(placed, placed.groups & self._come(placed.key)) for placed in loads]
        if kept := [only(each, rest) for each, own in come if (rest := each.groups & ~own)]:
            self.tiers_mover.load(kept)
        if own := [only(each, groups) for each, groups in come if groups]:
            self.link_mover.load(own)
        # At once: a state that a sequence goes on from is nowhere else after the step.
        for each in self._saving:
            for placed in loads:
                each.note(placed)
            each.save(loads)

    def poll(self) -> Sequence[str]:
        ended = list[str]()
        for name, mover in (("tiers", self.tiers_mover), ("link", self.link_mover)):
            for owner in mover.poll():
                awaited = self._awaited.get(owner, set())
                if name in awaited:
                    awaited.remove(name)
                    if not awaited:
                        del self._awaited[owner]
                        ended.append(owner)
        return ended

    def fileno(self) -> int | None:
        return self._waits.fileno()

    def close(self) -> None:
        self._waits.close()
        self.link_mover.close()
        self.tiers_mover.close()


class StackedTiers(Stacked):
    """The same, of tiers that tell which of them has what (`TieredIndex`)."""

    @property
    def _tiered(self) -> TieredIndex:
        return cast(TieredIndex, self.tiers_index)

    def tiers(self, key: bytes) -> Mapping[Tier, int]:
        return self._tiered.tiers(key)

    def watch(self, changed: Callable[[bytes], object]) -> None:
        self._tiered.watch(changed)


def only(placed: Placed, groups: int) -> Placed:
    """Return the parts of these groups alone."""
    places = (place if groups >> i & 1 else None for i, place in enumerate(placed.places))
    return Placed(placed.key, tuple(places))
