"""Tiers of blocks and one end of a link, as one store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


StoreHalves = tuple[StoreIndex, Mover]
"""Both halves of a store: its index and its mover."""


@define(eq=False)
class Stacked:
    """Both halves (`StoreIndex`, `LinkIndex`, `Mover`).

    A part is stored if the tiers have it: they are told of all parts that are saved, looked for or
    pinned. It is near if the tiers or the link have it near, and comes from the link only if it is
    not near in the tiers. In the end that computes prompts, saves go to the link too, which takes
    the parts that were asked for. What one of the two loads, the other saves if it lacks it: both
    are told of all parts that a step saves or loads, and leave those that they have.

    Each of several ranks has one. That of rank 0 asks and tells all ranks; each copies its own
    parts.
    """

    tiers_index: StoreIndex
    tiers_mover: Mover
    link_index: StoreIndex
    link_mover: Mover
    sends: bool
    """Whether the link is the end that computes prompts."""
    here: tuple[StoreIndex, StoreIndex] = field()
    """The indexes of tiers and link of this rank alone, as they are when a step is computed."""
    _awaited: dict[str, set[str]] = field(factory=dict, init=False)
    """By owner, which of the two `poll` still waits for."""
    _waits: DefaultSelector = field(factory=DefaultSelector, init=False)

    @here.default
    def _own(self) -> tuple[StoreIndex, StoreIndex]:
        return self.tiers_index, self.link_index

    @classmethod
    def of(
        cls, tiers: StoreHalves, link: StoreHalves, *, sends: bool, here: Sequence[StoreHalves] = ()
    ) -> Stacked:
        """Return one store of two. `here` are the two of this rank alone, if there are others."""
        kind = StackedTiers if isinstance(tiers[0], TieredIndex) else cls
        if not here:
            return kind(*tiers, *link, sends)
        (own_tiers, _), (own_link, _) = here
        return kind(*tiers, *link, sends, (own_tiers, own_link))

    def __attrs_post_init__(self) -> None:
        for mover in (self.tiers_mover, self.link_mover):
            if (handle := mover.fileno()) is not None:
                self._waits.register(handle, EVENT_READ)

    # --- LinkIndex --------------------------------------------------------------------------------

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.link_index)

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> int:
        asked = self.link.ask(prompt, keys, wanted)
        if asked:
            self._awaited.setdefault(prompt.id, set()).add("link")
        return asked

    @property
    def is_asked(self) -> bool:
        return self.link.is_asked

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        return self.link.take_asked()

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        self.link.begin(prompt_id, keys)

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        self.link.end(prompt_id, error, token_id)

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        return self.link.take_first_tokens()

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
        """Note that the next step saves these parts, or that it loads them."""
        self.tiers_index.note(placed)
        if self.sends:
            self.link_index.note(placed)

    def needless(self, key: bytes) -> int:
        """Return the groups whose parts of a block need not be saved."""
        kept = self.tiers_index.groups_of(key)
        return kept & self.link_index.groups_of(key) if self.sends else kept

    def drop(self, key: bytes) -> None:
        self.tiers_index.drop(key)
        self.link_index.drop(key)

    def touch(self, keys: Sequence[bytes]) -> None:
        self.tiers_index.touch(keys)

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        """Hold parts that only the link has near, and fetch the others from the tiers."""
        both = self.tiers_index, self.link_index
        come = [(key, groups & only_linked(key, *both)) for key, groups in wanted]
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
        """Keep parts near that the tiers have near, until `release`."""
        self._awaited.setdefault(owner, set()).add("tiers")
        self.tiers_index.fetch(near, owner)

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
        self._save(saves)

    def _save(self, saves: Sequence[Placed]) -> None:
        self.tiers_mover.save(saves)
        if self.sends:
            self.link_mover.save(saves)

    def load(self, loads: Sequence[Placed]) -> None:
        come = [(placed, placed.groups & only_linked(placed.key, *self.here)) for placed in loads]
        if kept := [only(each, rest) for each, own in come if (rest := each.groups & ~own)]:
            self.tiers_mover.load(kept)
        if own := [only(each, groups) for each, groups in come if groups]:
            self.link_mover.load(own)
        self._save(loads)  # at once: a state that a sequence goes on from is nowhere else later

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


def only_linked(key: bytes, tiers: StoreIndex, link: StoreIndex) -> int:
    """Return the groups whose parts of a block only the link has near."""
    come = link.near(key)
    return come & ~tiers.near(key) if come else 0


def only(placed: Placed, groups: int) -> Placed:
    """Return the parts of these groups alone."""
    places = (place if groups >> i & 1 else None for i, place in enumerate(placed.places))
    return Placed(placed.key, tuple(places))
