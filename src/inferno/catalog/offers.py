"""The values of a catalog: offers, the plugins they come from, choices and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from attrs import field, frozen

from inferno import contracts
from inferno.contracts import Declaration
from inferno.hookspecs import HOOKS

T = TypeVar("T", bound=Declaration)


class _Kinds(Mapping[str, type]):
    """Looks a hook's type up when it is asked for: most commands load one group of hooks."""

    def __getitem__(self, hook: str) -> type:
        returned = HOOKS[hook].function.__annotations__["return"]
        kind: type = getattr(contracts, returned.removeprefix("list[").removesuffix("]"))
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(HOOKS)

    def __len__(self) -> int:
        return len(HOOKS)


KINDS = _Kinds()
"""The type of declaration that each hook returns a list of."""


@frozen
class Offer(Generic[T]):
    """A declaration, and the distribution it comes from."""

    item: T
    distribution: str


@frozen
class SetAside:
    """A declaration that is not offered: it has another version of its hook's contract."""

    hook: str
    name: str
    reason: str
    remedy: str


@frozen
class Plugin:
    """One entry point of the group: loaded, disabled or broken."""

    name: str
    distribution: str
    version: str
    offers: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Hook name -> names of its declarations."""
    disabled: bool = False
    error: str = ""
    """Why it was set aside, in one line."""
    remedy: str = ""
    """What to do about `error`."""
    detail: str = ""
    """The traceback behind `error`."""
    set_aside: tuple[SetAside, ...] = ()
    """Single declarations that were set aside, of a plugin that loads."""

    @property
    def reason(self) -> str:
        """Why it, or part of it, is set aside."""
        return self.error or "; ".join(s.reason for s in self.set_aside)

    def remedy_for(self, name: str) -> str:
        """Return what to do if this declaration of the plugin is needed."""
        return next((s.remedy for s in self.set_aside if s.name == name), self.remedy)


@frozen
class Refusal:
    """A candidate that was not chosen."""

    name: str
    distribution: str
    reason: str


@frozen
class Choice(Generic[T]):
    """The chosen offer, and why the others were not chosen."""

    offer: Offer[T]
    refusals: tuple[Refusal, ...] = ()

    @property
    def item(self) -> T:
        return self.offer.item
