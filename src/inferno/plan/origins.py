"""Which versions of models a plan was made for, and the check that they are still here."""

from __future__ import annotations

from inferno.catalog import Catalog
from inferno.contracts import Origin, Source
from inferno.errors import CheckpointError
from inferno.plan.plan import Plan


def origin_of(source: Source, ref: str) -> Origin | None:
    """Return the version behind a fetched reference, if its source tells it."""
    return None if source.origin is None else source.origin(ref)


def agree_on_origins(plan: Plan, catalog: Catalog) -> None:
    """Raise CheckpointError if the model of a plan, or of one of its overrides, has changed. Its
    draft model has a plan of its own."""
    planned = {plan.ref: plan.origin} | {use.ref: use.origin for use in plan.overrides}
    for ref, origin in planned.items():
        if origin is None:
            continue
        current = origin_of(catalog.source_of(ref).item, ref)
        if current != origin:
            made, here = _named(origin), _named(current)
            changed = f"{made}, and {here} is here"
            if made == here:
                changed = f"{made}, whose files have changed"
            raise CheckpointError(
                f"the plan was made for {changed}",
                "Install that version, or make a new plan: `inferno explain REF --lock`.",
            )


def _named(origin: Origin | None) -> str:
    return "something else" if origin is None else f"{origin.name} {origin.version}"
