"""One decision: its value, and what the plan tells of how it was made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from attrs import frozen

from inferno.catalog import Choice, Offer, Plugin, Refusal
from inferno.plan.plan import Chosen

T = TypeVar("T")


@frozen
class Decided(Generic[T]):
    """A value, the offers it was chosen from, and the notes for the user."""

    value: T
    offers: tuple[tuple[str, Offer[Any]], ...] = ()
    """(kind, offer) of everything chosen: ("scheme", the offer of q8_0)."""
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def by(cls, kind: str, choice: Choice[Any]) -> Decided[Any]:
        """The item of one choice."""
        return cls(choice.item, ((kind, choice.offer),), choice.refusals)


def chosen_of(decisions: Iterable[Decided[Any]], plugins: Iterable[Plugin]) -> tuple[Chosen, ...]:
    """Everything that was chosen, once, with the version it comes from."""
    versions = {plugin.distribution: plugin.version for plugin in plugins}
    offers = dict.fromkeys(
        (kind, offer.item.name, offer.distribution) for d in decisions for kind, offer in d.offers
    )
    return tuple(Chosen(kind, name, dist, versions[dist]) for kind, name, dist in offers)


def refusals_of(decisions: Iterable[Decided[Any]]) -> tuple[Refusal, ...]:
    """Every candidate that was not chosen, once."""
    return tuple(dict.fromkeys(refusal for d in decisions for refusal in d.refusals))
