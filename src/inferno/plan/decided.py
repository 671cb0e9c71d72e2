"""One decision: its value, and how it was made, for the plan to report."""

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
    """(kind, offer) of everything chosen: ("scheme", q8_0's offer)."""
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def by(cls, kind: str, choice: Choice[Any]) -> Decided[Any]:
        """Return the decision for one choice's item."""
        return cls(choice.item, ((kind, choice.offer),), choice.refusals)


def chosen_of(decisions: Iterable[Decided[Any]], plugins: Iterable[Plugin]) -> tuple[Chosen, ...]:
    """Return everything that was chosen, without duplicates, with its distribution's version."""
    versions = {plugin.distribution: plugin.version for plugin in plugins}
    offers = dict.fromkeys(
        (kind, offer.item.name, offer.distribution) for d in decisions for kind, offer in d.offers
    )
    return tuple(Chosen(kind, name, dist, versions[dist]) for kind, name, dist in offers)


def refusals_of(decisions: Iterable[Decided[Any]]) -> tuple[Refusal, ...]:
    """Return every candidate that was not chosen, without duplicates."""
    return tuple(dict.fromkeys(refusal for d in decisions for refusal in d.refusals))
