"""How much each owner may store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from inferno.contracts import Tables
from inferno.errors import RequestError

SCHEMA = "CREATE INDEX records_by_owner ON records(owner, used, bytes);"
PLACES = 8
"""The files of one key may take so many times the room that is left: one alone cannot fill it."""


@frozen
class Quota:
    """An owner's limits; None: only those of the store."""

    bytes: int | None = None
    """Of responses, conversations and files together."""
    files: int | None = None
    batches: int | None = None
    """That have not ended."""


QuotaOf = Callable[[str], Quota]
"""Returns an owner's."""


def used(tables: Tables, owner: str) -> int:
    """Return the bytes that an owner has stored."""
    query = (
        "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM records WHERE owner = ?) "
        "+ (SELECT COALESCE(SUM(bytes), 0) FROM files WHERE owner = ?)"
    )
    return int(tables.one(query, owner, owner)[0])


def oldest(tables: Tables, owner: str, keep: str) -> Any:
    """Return id and bytes of an owner's record that was used longest ago and has ended, but not of
    `keep`; None for none."""
    return tables.one(
        "SELECT id, bytes FROM records WHERE owner = ? AND text IS NOT NULL AND id != ? "
        "ORDER BY used LIMIT 1",
        owner,
        keep,
    )


def next_to_go(tables: Tables, keep: str) -> Any:
    """Return the same of the owner who has most: nobody's records make room for those of another
    who has more."""
    owners = tables.all("SELECT owner FROM records GROUP BY owner ORDER BY SUM(bytes) DESC")
    records = (oldest(tables, owner, keep) for (owner,) in owners)
    return next((each for each in records if each is not None), None)


def over_quota(size: int, quota: int) -> RequestError:
    """Return the error for what does not fit into a key's quota."""
    return RequestError(
        f"{size} bytes do not fit: this API key may store {quota} bytes",
        "Delete responses, conversations or files, or send store: false.",
        code="store_full",
    )
