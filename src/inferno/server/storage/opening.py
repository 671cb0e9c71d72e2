"""Opens the store that an address means: a path, or a URL whose beginning names a plugin's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from inferno.catalog import GROUPS, load_catalog
from inferno.contracts import RecordStore, Tables
from inferno.hookspecs import ENDPOINTS

_OF_PATHS = "sqlite"


def open_tables(
    address: str | Path | None,
    schemas: Sequence[str],
    disable: Iterable[str] = (),
    only: Iterable[str] = (),
) -> Tables:
    """Open the store at an address; without one, in memory. Raises OptionError."""
    text = None if address is None else str(address)
    scheme, mark, _ = (text or "").partition("://")
    name = scheme.lower() if mark else _OF_PATHS
    catalog = load_catalog(disable=disable, only=only, groups=(ENDPOINTS,))
    for offer in catalog.of("inferno_stores"):
        if name in offer.item.spellings:
            name = offer.item.name
    if all(offer.item.name != name for offer in catalog.of("inferno_stores")):
        catalog = load_catalog(disable=disable, only=only, groups=GROUPS)  # with the hints
    return catalog.named(RecordStore, name).item.open(text, schemas)
