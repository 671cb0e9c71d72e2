"""Responses and conversations as they are stored: their tables, and what is read of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from attrs import frozen

from inferno.server.responses.items import Item
from inferno.server.storage import files, leases, quotas, room

OVERHEAD = 256
"""Approximate bytes that a record takes besides its content."""
SCHEMA = """
CREATE TABLE records (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, used REAL NOT NULL,
  bytes INTEGER NOT NULL, previous TEXT, body BLOB NOT NULL, text TEXT, token_ids BLOB
);
CREATE INDEX records_by_use ON records(used);
CREATE TABLE items (
  record TEXT NOT NULL REFERENCES records(id) ON DELETE CASCADE, position INTEGER NOT NULL,
  id TEXT NOT NULL, part TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (record, position)
) WITHOUT ROWID;
CREATE INDEX items_by_id ON items(id);
"""
PENDING = "CREATE INDEX records_pending ON records(id) WHERE text IS NULL;"
"""Responses that are accepted and have not ended have no text, not even an empty one."""
SCHEMAS = (SCHEMA, files.SCHEMA, PENDING, quotas.SCHEMA, room.SCHEMA + leases.SCHEMA)
"""What each version of the store added."""
Kind = Literal["response", "conversation"]


@frozen(kw_only=True)
class Stored:
    """A response, as it is stored."""

    body: dict[str, Any]
    """The response object."""
    inputs: Sequence[Item]
    """Its own input items."""
    previous: str | None = None
    """The response that it continues."""
    conversation: str | None = None
    """The conversation that its items are added to."""
    is_accepted: bool = False
    """Whether it was stored before it ended, so that another server may have ended it."""
    text: str = ""
    """The model's output as it was generated, with its markers."""
    token_ids: Sequence[int] = ()
    """The tokens of that output: its turn can be replayed without tokenizing it again."""


@frozen
class Page:
    """Some of a list's items."""

    items: Sequence[Item]
    more: bool


def size_of(rows: Iterable[tuple[Any, ...]]) -> int:
    """Return the bytes that items take, given as rows that end in their content."""
    return sum(len(row[-1]) + OVERHEAD // 4 for row in rows)
