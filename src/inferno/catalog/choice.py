"""The one rule of choice: among the offers that do not refuse, the
highest priority wins; a tie is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inferno.catalog.offers import Choice, Offer, Refusal, T
from inferno.errors import PluginError, UnsupportedError


def _accepts(offer: Offer[Any]) -> None:
    return None


def choose(
    offers: Iterable[Offer[T]], what: str, refuses: Callable[[Offer[T]], str | None] = _accepts
) -> Choice[T]:
    """Choose an offer, with the reasons against the others. Raises UnsupportedError if all
    refuse."""
    offer, refusals = weigh(offers, what, refuses)
    if offer is None:
        raise none_serves(what, refusals)
    return Choice(offer, refusals)


def none_serves(what: str, refusals: Iterable[Refusal]) -> UnsupportedError:
    """The error when every offer refuses: it lists the reasons."""
    told = "; ".join(f"{r.name} ({r.distribution}): {r.reason}" for r in refusals)
    return UnsupportedError(f"nothing installed serves {what}", told or "none is installed")


def weigh(
    offers: Iterable[Offer[T]], what: str, refuses: Callable[[Offer[T]], str | None]
) -> tuple[Offer[T] | None, tuple[Refusal, ...]]:
    """Return the offer that does not refuse and has the highest priority, or None if all refuse,
    and the reasons against the others."""
    accepting, refusals = [], []
    for offer in offers:
        reason = refuses(offer)
        if reason is None:
            accepting.append(offer)
        else:
            refusals.append(Refusal(offer.item.name, offer.distribution, reason))
    if not accepting:
        return None, tuple(refusals)
    best = max(map(_priority, accepting))
    chosen = single([o for o in accepting if _priority(o) == best], f"{what} (priority {best})")
    for offer in accepting:
        if offer is not chosen:
            reason = f"priority {_priority(offer)}, {chosen.item.name} has {best}"
            refusals.append(Refusal(offer.item.name, offer.distribution, reason))
    return chosen, tuple(refusals)


def single(found: Sequence[Offer[T]], what: str) -> Offer[T]:
    """Return the only offer. Raises PluginError if there are two."""
    if len(found) > 1:
        names = [o.distribution for o in found]
        raise PluginError(
            f"{what} is offered by {' and '.join(names)}",
            f"Start with --disable {names[0]} or --disable {names[1]}, or uninstall one.",
        )
    return found[0]


def _priority(offer: Offer[Any]) -> int:
    return int(getattr(offer.item, "priority", 0))
