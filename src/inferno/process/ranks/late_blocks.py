"""The store of a rank that computes a step later than the step was planned: the last pipeline
stage's first one, and others that propose drafts with it. What its index is told of steps in flight
is done between the same two steps as by all ranks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from attrs import define, field

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


@define
class _Said:
    """What the index was told of a block, and has not done yet."""

    dropped: bool = False
    groups: int = 0
    """Those that were noted since: a set of bits."""
    left: int = 0
    """How many of these calls are left."""


@define(eq=False)
class LateBlocks:
    """Both halves of a store (`StoreIndex`, `Mover`), whose index answers as of the latest step
    that was planned, and is changed as of the latest one that was computed."""

    index: StoreIndex
    mover: Mover
    usage: StoreUsage = field(init=False)
    _waiting: deque[Callable[[], object] | None] = field(factory=deque, init=False)
    """What is to be done, in order; None: a step in flight. The first one is a step."""
    _said: dict[bytes, _Said] = field(factory=dict, init=False)
    _unbegun: Counter[str] = field(factory=Counter, init=False)
    """By owner, how many fetches have not begun."""

    @classmethod
    def of(cls, built: tuple[StoreIndex, Mover]) -> LateBlocks:
        """Return a late store, from one that was built here."""
        index, kind = built[0], cls
        if isinstance(index, TieredIndex):
            kind = LateTiers
        elif isinstance(index, LinkIndex):
            kind = LateLink
        return kind(*built)

    def __attrs_post_init__(self) -> None:
        self.usage = self.index.usage

    def launched(self) -> None:
        """Note that a step is in flight from now on."""
        self._waiting.append(None)

    def computed(self) -> None:
        """Note that the first step in flight has saved and loaded, and do what came after it."""
        self._waiting.popleft()
        while self._waiting and (act := self._waiting[0]) is not None:
            self._waiting.popleft()
            act()

    def _do(self, act: Callable[[], object]) -> None:
        """Do something between the two steps between which it was planned."""
        if self._waiting:
            self._waiting.append(act)
        else:
            act()

    # --- StoreIndex -------------------------------------------------------------------------------

    def groups_of(self, key: bytes) -> int:
        groups = self.index.groups_of(key)
        if (said := self._said.get(key)) is not None:
            groups = said.groups | (0 if said.dropped else groups)
        return groups

    def near(self, key: bytes) -> int:
        return 0 if self._is_dropped(key) else self.index.near(key)

    def note(self, placed: Placed) -> None:
        self._said.setdefault(placed.key, _Said()).groups |= placed.groups
        self._say(placed.key, partial(self.index.note, placed))

    def drop(self, key: bytes) -> None:
        said = self._said.setdefault(key, _Said())
        said.dropped, said.groups = True, 0
        self._say(key, partial(self.index.drop, key))

    def touch(self, keys: Sequence[bytes]) -> None:
        self._do(partial(self.index.touch, [*keys]))

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        def begin() -> None:
            self._unbegun[owner] -= 1
            self.index.fetch(wanted, owner)

        self._unbegun[owner] += 1
        self._do(begin)

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        self._do(partial(self.index.pin, keys, owner, until))
        return next((i for i, key in enumerate(keys) if not self.groups_of(key)), len(keys))

    def release(self, owner: str) -> None:
        self._do(partial(self.index.release, owner))

    def _say(self, key: bytes, call: Callable[[], object]) -> None:
        def act() -> None:
            said.left -= 1
            if not said.left:
                del self._said[key]
            call()

        said = self._said[key]
        said.left += 1
        self._do(act)

    def _is_dropped(self, key: bytes) -> bool:
        said = self._said.get(key)
        return said is not None and said.dropped

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self.mover.register(groups)

    def save(self, saves: Sequence[Placed]) -> None:
        self.mover.save(saves)

    def load(self, loads: Sequence[Placed]) -> None:
        self.mover.load(loads)

    def poll(self) -> Sequence[str]:
        # An owner with a fetch that has not begun is named for one that it has given up.
        ended = [owner for owner in self.mover.poll() if not self._unbegun[owner]]
        self._unbegun = +self._unbegun
        return ended

    def fileno(self) -> int | None:
        return self.mover.fileno()

    def close(self) -> None:
        self.mover.close()


class LateTiers(LateBlocks):
    """The same of a store that says which tier has what (`TieredIndex`)."""

    def tiers(self, key: bytes) -> Mapping[Tier, int]:
        assert isinstance(self.index, TieredIndex)
        tiers = self.index.tiers(key)
        return dict.fromkeys(tiers, 0) if self._is_dropped(key) else tiers

    def watch(self, changed: Callable[[bytes], object]) -> None:
        assert isinstance(self.index, TieredIndex)
        self.index.watch(changed)


@define(eq=False)
class LateLink(LateBlocks):
    """The same of a store that links two instances (`LinkIndex`). Prompts begin at once, and end
    after the steps that compute them."""

    _owed: dict[bytes, int] = field(factory=dict, init=False)
    """By key, groups that a prompt lacks which began after a step that saves them was sent: other
    ranks have saved them for others only."""
    _unreleased: Counter[str] = field(factory=Counter, init=False)
    """By owner, how many releases wait for steps in flight."""

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.index)

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> int:
        # Where ids come again, a release that waits would end this prompt.
        return 0 if self._unreleased[prompt.id] else self.link.ask(prompt, keys, wanted)

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        """Hold at once what is near: it may have come for another prompt, whose release waits for
        steps in flight. If a release of the same owner waits, wait behind it."""
        if self._unreleased[owner]:
            super().fetch(wanted, owner)
        else:
            self.index.fetch(wanted, owner)

    def release(self, owner: str) -> None:
        def act() -> None:
            self._unreleased[owner] -= 1
            self._unreleased = +self._unreleased
            self.index.release(owner)

        self._unreleased[owner] += 1
        self._do(act)

    @property
    def is_asked(self) -> bool:
        return self.link.is_asked

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        return self.link.take_asked()

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        self.link.begin(prompt_id, keys)
        for key in keys:
            if (said := self._said.get(key)) is not None and said.groups:
                self._owed[key] = said.groups & ~self.index.groups_of(key)

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        self._do(partial(self.link.end, prompt_id, error, token_id))

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        return self.link.take_first_tokens()

    def groups_of(self, key: bytes) -> int:
        return super().groups_of(key) & ~self._owed.get(key, 0)

    def note(self, placed: Placed) -> None:
        if owed := self._owed.pop(placed.key, 0) & ~placed.groups:
            self._owed[placed.key] = owed
        super().note(placed)
