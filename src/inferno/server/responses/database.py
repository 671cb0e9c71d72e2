"""The SQLite database of stored responses and conversations. Synchronous: `Store` calls it in its
own thread."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from attrs import frozen

from inferno.errors import OptionError, RequestError
from inferno.server.responses.items import Item
from inferno.server.storage.connection import Connection, explained
from inferno.server.storage.files import SCHEMA as FILES
from inferno.server.storage.files import Files
from inferno.server.storage.quotas import SCHEMA as BY_OWNER
from inferno.server.storage.quotas import next_to_go, oldest, over_quota, used

_OVERHEAD = 256
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
_CHAIN = """
WITH RECURSIVE chain(id, previous, depth) AS (
  SELECT id, previous, 0 FROM records WHERE id = :id AND owner = :owner AND kind = 'response'
  UNION ALL
  SELECT r.id, r.previous, depth + 1 FROM chain c JOIN records r ON r.id = c.previous
  WHERE r.owner = :owner AND r.kind = 'response'
)
"""

Kind = Literal["response", "conversation"]
_encode, _decode = msgspec.json.encode, msgspec.json.decode


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
    text: str = ""
    """The model's output as it was generated, with its markers."""
    token_ids: Sequence[int] = ()
    """The tokens of that output: its turn can be replayed without tokenizing it again."""


@frozen
class Page:
    """Some of a list's items."""

    items: Sequence[Item]
    more: bool


class Database:
    """Responses and conversations by id and owner, least recently used ones deleted first; and, in
    `files`, files and batches."""

    def __init__(self, path: Path | None, seconds: float | None, max_bytes: int) -> None:
        """Open the file, or a database in memory. `seconds` after their last use, records are
        deleted. Raises OptionError."""
        self.seconds, self.max_bytes = seconds, max_bytes
        self._tables = Connection(path, (SCHEMA, FILES, PENDING, BY_OWNER))
        self._db = self._tables.raw
        try:
            self.files = Files(self._tables, seconds, max_bytes)
            self.used_bytes = self._counted()
            """Of all records."""
            self.expire()
            self._fail_pending()
        except sqlite3.Error as error:
            raise OptionError(*explained(path, error)) from error

    def close(self) -> None:
        self._tables.close()

    # --- responses

    def accept(self, owner: str, stored: Stored) -> None:
        """Store a response that has not ended, unless it has ended meanwhile. If the server stops
        before it has, it is found as failed. Raises RequestError."""
        with self._transaction():
            if self._tables.one("SELECT 1 FROM records WHERE id = ?", stored.body["id"]) is None:
                body = {name: value for name, value in stored.body.items() if name != "output"}
                items = [(item, "input") for item in stored.inputs]
                self._insert("response", body, owner, items, stored.previous, None)

    def fail(self, owner: str, id: str, error: dict[str, Any]) -> None:
        """Let an accepted response be one that has failed."""
        row = self._find("response", owner, id, "body")
        if row is not None:
            with self._transaction():
                self._end(id, _decode(row[0]), error)

    def _end(self, id: str, body: dict[str, Any], error: dict[str, Any]) -> None:
        body = {**body, "status": "failed", "error": error}
        query = "UPDATE records SET body = ?, text = '' WHERE id = ?"
        self._db.execute(query, (_encode(body), id))

    def _fail_pending(self) -> None:
        """Let the responses that another process accepted and did not end be failed ones. On a full
        disk they are when they are asked for."""
        error = {"code": "server_error", "message": "the server stopped before it was complete"}
        rows = self._tables.all("SELECT id, body FROM records WHERE text IS NULL")
        with contextlib.suppress(sqlite3.OperationalError), self._transaction():
            for id, body in rows:
                self._end(id, _decode(body), error)

    def save(self, owner: str, stored: Stored) -> None:
        """Store a response, and add its items to its conversation. Raises RequestError."""
        body = {name: value for name, value in stored.body.items() if name != "output"}
        outputs, tokens = stored.body["output"], array("I", stored.token_ids).tobytes()
        items = [(item, "input") for item in stored.inputs]
        items += [(item, "output") for item in outputs]
        with self._transaction():
            accepted = self._tables.one(
                "SELECT bytes FROM records WHERE id = ? AND text IS NULL", body["id"]
            )
            if accepted is not None:
                self._drop(body["id"], accepted[0])
            self._insert("response", body, owner, items, stored.previous, stored.text, tokens)
            if stored.conversation is not None:
                self._append(owner, stored.conversation, [*stored.inputs, *outputs])

    def response(self, owner: str, id: str) -> Stored | None:
        """Return a response."""
        row = self._find("response", owner, id, "body, previous, text, token_ids")
        if row is None:
            return None
        body, previous, text, tokens = row
        token_ids = array("I")
        token_ids.frombytes(tokens or b"")
        return Stored(
            body={**_decode(body), "output": self._items(id, "output")},
            inputs=self._items(id, "input"),
            previous=previous,
            text=text or "",
            token_ids=tuple(token_ids),
        )

    def chain(self, owner: str, id: str) -> list[Item]:
        """Return all items up to the end of a response: its own, and those it continues. Raises
        RequestError if one of them is gone."""
        named = {"id": id, "owner": owner}
        links = self._db.execute(f"{_CHAIN} SELECT id, previous FROM chain ORDER BY depth", named)
        ids = links.fetchall()
        missing = ids[-1][1] if ids else id
        if missing is not None:
            raise RequestError(
                f"the previous response {missing[:80]!r} is not stored",
                "It was deleted, expired, or made with store: false or another key. "
                "Send the whole conversation in input.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        with self._transaction():
            self._db.executemany(
                "UPDATE records SET used = ? WHERE id = ?", [(time.time(), i) for i, _ in ids]
            )
        rows = self._db.execute(
            f"{_CHAIN} SELECT i.body FROM chain JOIN items i ON i.record = chain.id "
            "ORDER BY chain.depth DESC, i.position",
            named,
        )
        return [_decode(row[0]) for row in rows]

    # --- conversations

    def create(self, owner: str, body: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a new conversation. Raises RequestError."""
        with self._transaction():
            self._insert("conversation", body, owner, [(item, "item") for item in items])

    def conversation(self, owner: str, id: str) -> dict[str, Any] | None:
        """Return a conversation's object."""
        row = self._find("conversation", owner, id, "body")
        return None if row is None else dict(_decode(row[0]))

    def update(self, owner: str, body: dict[str, Any]) -> None:
        """Replace a conversation's object."""
        with self._transaction():
            self._db.execute(
                "UPDATE records SET body = ? WHERE id = ? AND owner = ? AND kind = 'conversation'",
                (_encode(body), body["id"], owner),
            )

    def add(self, owner: str, id: str, items: Sequence[Item]) -> None:
        """Add items to the end of a conversation. Raises RequestError."""
        with self._transaction():
            self._append(owner, id, items)

    # --- items

    def page(
        self, kind: Kind, owner: str, id: str, after: str | None, limit: int, order: str
    ) -> Page | None:
        """Return `limit` items of a conversation, or of a response's input, from after an item's
        id; None if there is no such record. `order` is asc or desc."""
        if self._find(kind, owner, id, "id") is None:
            return None
        start = None
        if after is not None:
            start_row = self._tables.one(
                "SELECT position FROM items WHERE record = ? AND id = ?", id, after
            )
            if start_row is None:
                raise RequestError(
                    f"after names no item: {after[:80]!r}", "Give a listed id.", param="after"
                )
            start = start_row[0]
        sign, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
        rows = self._tables.all(
            "SELECT body FROM items WHERE record = ? AND part IN ('input', 'item') "
            f"AND (? IS NULL OR position {sign} ?) ORDER BY position {direction} LIMIT ?",
            id,
            start,
            start,
            limit + 1,
        )
        return Page([_decode(row[0]) for row in rows[:limit]], len(rows) > limit)

    def all_items(self, owner: str, id: str) -> list[Item] | None:
        """Return all items of a conversation."""
        row = self._find("conversation", owner, id, "id")
        return None if row is None else self._items(id, "item")

    def item(self, owner: str, id: str, record: str | None = None) -> Item | None:
        """Return an item by its id, of one record or of any."""
        row = self._tables.one(
            "SELECT i.body FROM items i JOIN records r ON r.id = i.record "
            "WHERE i.id = ? AND r.owner = ? AND (? IS NULL OR r.id = ?) LIMIT 1",
            id,
            owner,
            record,
            record,
        )
        return None if row is None else dict(_decode(row[0]))

    def delete_item(self, owner: str, record: str, id: str) -> bool:
        """Delete an item of a conversation; return whether there was one."""
        if self._find("conversation", owner, record, "id") is None:
            return False
        where = "FROM items WHERE record = ? AND id = ?"
        size = sum(_size([row]) for row in self._tables.all(f"SELECT body {where}", record, id))
        with self._transaction():
            self._db.execute(f"DELETE {where}", (record, id))
            self._db.execute("UPDATE records SET bytes = bytes - ? WHERE id = ?", (size, record))
            self.used_bytes -= size
        self._tables.forget()
        return size > 0

    # --- space and time

    def delete(self, kind: Kind, owner: str, id: str) -> bool:
        """Delete a response or a conversation with its items; return whether there was one."""
        row = self._find(kind, owner, id, "bytes")
        if row is not None:
            self._delete([(id, row[0])])
        return row is not None

    def expire(self) -> None:
        """Delete what has not been created, continued or extended for too long."""
        if self.seconds is None:
            return
        self.files.expire()
        limit = time.time() - self.seconds
        query = "SELECT id, bytes FROM records WHERE used < ? AND text IS NOT NULL"
        if old := self._tables.all(query, limit):
            self._delete(old)

    def _delete(self, records: Sequence[tuple[str, int]]) -> None:
        """Delete records, given with their sizes."""
        ids = [(id,) for id, _ in records]
        self._tables.delete(lambda: self._db.executemany("DELETE FROM records WHERE id = ?", ids))
        self.used_bytes -= sum(size for _, size in records)

    def _insert(
        self,
        kind: Kind,
        body: dict[str, Any],
        owner: str,
        items: Sequence[tuple[Item, str]],
        previous: str | None = None,
        text: str | None = "",
        tokens: bytes = b"",
    ) -> None:
        encoded = _encode(body)
        rows = [
            (body["id"], position, item["id"], part, _encode(item))
            for position, (item, part) in enumerate(items)
        ]
        size = _OVERHEAD + len(encoded) + len(text or "") + len(tokens) + _size(rows)
        self._make_room(owner, size)
        self._db.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (body["id"], kind, owner, time.time(), size, previous, encoded, text, tokens),
        )
        self._db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
        self.used_bytes += size

    def _append(self, owner: str, id: str, items: Sequence[Item]) -> None:
        row = self._find("conversation", owner, id, "bytes")
        if row is None:  # deleted meanwhile: there is nothing to add to
            return
        last = self._tables.one(
            "SELECT COALESCE(MAX(position), -1) FROM items WHERE record = ?", id
        )[0]
        rows = [
            (id, position, item["id"], "item", _encode(item))
            for position, item in enumerate(items, last + 1)
        ]
        size = _size(rows)
        # Used now, so that it is the last to make room.
        self._db.execute(
            "UPDATE records SET used = ?, bytes = bytes + ? WHERE id = ?", (time.time(), size, id)
        )
        self._make_room(owner, size, id, row[0])
        self._db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
        self.used_bytes += size

    def _make_room(self, owner: str, size: int, keep: str = "", already: int = 0) -> None:
        """Delete records, used longest ago first, until `size` bytes fit: the owner's own while
        there are too many for its quota, then those of the owner who has most. The record `keep`,
        which has `already` bytes, stays."""
        if size + already > self.max_bytes:
            raise RequestError(
                f"this takes {size + already} bytes to store, but the store has {self.max_bytes}",
                "Send store: false, or start the server with a larger --store-size.",
                param="store",
            )
        quota = self.files.quota_of(owner).bytes
        while quota is not None and used(self._tables, owner) + size > quota:
            if (mine := oldest(self._tables, owner, keep)) is None:
                raise over_quota(size, quota)
            self._drop(*mine)
        while self.used_bytes + size > self.max_bytes:
            if (last := next_to_go(self._tables, keep)) is None:
                raise RequestError(
                    "the store is full of responses that have not ended",
                    "Wait for them, or start the server with a larger --store-size.",
                    param="store",
                    code="store_full",
                )
            self._drop(*last)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._db:
                yield
        except Exception:  # rolled back: so is the count
            self.used_bytes = self._counted()
            raise

    def _counted(self) -> int:
        return int(self._tables.one("SELECT COALESCE(SUM(bytes), 0) FROM records")[0])

    def _drop(self, id: str, size: int) -> None:
        self._db.execute("DELETE FROM records WHERE id = ?", (id,))
        self.used_bytes -= size

    # --- queries

    def _find(self, kind: Kind, owner: str, id: str, columns: str) -> Any:
        query = f"SELECT {columns} FROM records WHERE id = ? AND owner = ? AND kind = ?"
        return self._tables.one(query, id, owner, kind)

    def _items(self, record: str, part: str) -> list[Item]:
        query = "SELECT body FROM items WHERE record = ? AND part = ? ORDER BY position"
        return [_decode(row[0]) for row in self._tables.all(query, record, part)]


def _size(rows: Iterable[tuple[Any, ...]]) -> int:
    return sum(len(row[-1]) + _OVERHEAD // 4 for row in rows)
