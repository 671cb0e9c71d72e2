"""Stored responses and conversations. Synchronous: `Store` calls it in its own thread."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from inferno.contracts import Tables
from inferno.errors import OptionError, RequestError, StoreError
from inferno.server.responses.items import Item
from inferno.server.responses.stored import OVERHEAD, Kind, Page, Stored, size_of
from inferno.server.storage import files, leases, room

# Owners are compared after a record was found by its id: before, a database without statistics may
# look for all records of the owner instead.
_CHAIN = """
WITH RECURSIVE links(id, previous, owner, kind, depth) AS (
  SELECT id, previous, owner, kind, 0 FROM records WHERE id = ?
  UNION ALL
  SELECT r.id, r.previous, r.owner, r.kind, depth + 1 FROM links l
  JOIN records r ON r.id = l.previous WHERE l.owner = ? AND l.kind = 'response'
),
chain AS (SELECT id, previous, depth FROM links WHERE owner = ? AND kind = 'response')
"""
_STOPPED = {"code": "server_error", "message": "the server stopped before it was complete"}

_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Database:
    """Responses and conversations by id and owner, least recently used ones deleted first; and, in
    `files`, files and batches."""

    def __init__(
        self,
        tables: Tables,
        seconds: float | None,
        max_bytes: int,
        lease_seconds: float = leases.SECONDS,
    ) -> None:
        """`seconds` after their last use, records are deleted. For `lease_seconds` after it was
        heard, what a server is at is not given to others. Raises OptionError."""
        self.seconds = seconds
        self.tables = tables
        self.leases = leases.Leases(tables, lease_seconds)
        try:
            self.files = files.Files(tables, self.leases, seconds, max_bytes)
            self.room = room.Room(tables, max_bytes)
            with contextlib.suppress(StoreError):  # on a full disk, once there is room
                self.room.transaction(self._enter)
            self.expire()
        except StoreError as error:
            tables.close()
            raise OptionError(error.cause, "Repair it, or name another one: --store") from error

    def close(self) -> None:
        """Let others take over what this server was at, and close the store."""
        try:
            with contextlib.suppress(StoreError):
                self.room.transaction(self.leases.hand_over)
        finally:
            self.tables.close()

    # --- servers

    def beat(self) -> leases.Heard:
        """Say that this server lives, and let end what those had in hand that do not."""
        return self.room.transaction(self._beat)

    def _beat(self) -> leases.Heard:
        heard = self.leases.beat()
        self._end_dead()
        return heard

    def _enter(self) -> None:
        self.leases.begin()
        self._end_dead()

    def _end_dead(self) -> None:
        """Let the responses of servers that stopped be failed ones. Their batches are run by
        others."""
        cancelled = self.leases.end_dead()
        for id in cancelled:
            self.files.end_cancelled(id)
        rows = self.tables.all(
            "SELECT id, body FROM records WHERE text IS NULL AND id NOT IN (SELECT id FROM leases)"
        )
        for id, body in rows:
            status = "cancelled" if id in cancelled else "failed"
            self._end(id, _decode(body), status, None if id in cancelled else _STOPPED)

    # --- responses

    def accept(self, owner: str, stored: Stored) -> None:
        """Store a response that has not ended, unless it has ended meanwhile. If the server stops
        before it has, it is found as failed. Raises RequestError."""

        def work() -> None:
            id = stored.body["id"]
            if self.tables.one("SELECT 1 FROM records WHERE id = ?", id) is None:
                body = {name: value for name, value in stored.body.items() if name != "output"}
                items = [(item, "input") for item in stored.inputs]
                self._insert("response", body, owner, items, stored.previous, None)
                self.leases.take(id)

        self.room.transaction(work)

    def fail(self, owner: str, id: str, error: dict[str, Any]) -> None:
        """Let a response that this server accepted be one that has failed."""

        def work() -> None:
            row = self._find("response", owner, id, "body")
            if row is not None and self.leases.has(id):
                self._end(id, _decode(row[0]), "failed", error)
                self.leases.release(id)

        self.room.transaction(work)

    def _end(
        self, id: str, body: dict[str, Any], status: str, error: dict[str, Any] | None
    ) -> None:
        body = {**body, "status": status, "error": error}
        query = "UPDATE records SET body = ?, text = '' WHERE id = ? AND text IS NULL"
        self.tables.run(query, _encode(body), id)

    def cancel(self, owner: str, id: str) -> bool:
        """Ask the server that generates a response to stop. Returns whether there may be one."""

        def work() -> bool:
            exists = self._find("response", owner, id, "id") is not None
            return exists and self.leases.cancel(id)

        return self.room.transaction(work)

    def save(self, owner: str, stored: Stored) -> None:
        """Store a response, and add its items to its conversation. One that was accepted and that
        another server has deleted or let end stays so. Raises RequestError."""
        body = {name: value for name, value in stored.body.items() if name != "output"}
        outputs, tokens = stored.body["output"], array("I", stored.token_ids).tobytes()
        items = [(item, "input") for item in stored.inputs]
        items += [(item, "output") for item in outputs]

        def work() -> None:
            if stored.is_accepted:
                pending = self.tables.one(
                    "SELECT bytes FROM records WHERE id = ? AND text IS NULL", body["id"]
                )
                is_ours = self.leases.has(body["id"])
                self.leases.release(body["id"])
                if pending is None or not is_ours:
                    return
                self.room.drop(body["id"], pending[0])
            self._insert("response", body, owner, items, stored.previous, stored.text, tokens)
            if stored.conversation is not None:
                self._append(owner, stored.conversation, [*stored.inputs, *outputs])

        self.room.transaction(work)

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
        named = (id, owner, owner)
        ids = self.tables.all(f"{_CHAIN} SELECT id, previous FROM chain ORDER BY depth", *named)
        missing = ids[-1][1] if ids else id
        if missing is not None:
            raise RequestError(
                f"the previous response {missing[:80]!r} is not stored",
                "It was deleted, expired, or made with store: false or another key. "
                "Send the whole conversation in input.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        used = [(time.time(), i) for i, _ in ids]
        query = "UPDATE records SET used = ? WHERE id = ?"
        self.tables.transaction(lambda: self.tables.many(query, used))
        rows = self.tables.all(
            f"{_CHAIN} SELECT i.body FROM chain JOIN items i ON i.record = chain.id "
            "ORDER BY chain.depth DESC, i.position",
            *named,
        )
        return [_decode(row[0]) for row in rows]

    # --- conversations

    def create(self, owner: str, body: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a new conversation. Raises RequestError."""
        rows = [(item, "item") for item in items]
        self.room.transaction(lambda: self._insert("conversation", body, owner, rows))

    def conversation(self, owner: str, id: str) -> dict[str, Any] | None:
        """Return a conversation's object."""
        row = self._find("conversation", owner, id, "body")
        return None if row is None else dict(_decode(row[0]))

    def update(self, owner: str, body: dict[str, Any]) -> None:
        """Replace a conversation's object."""
        query = "UPDATE records SET body = ? WHERE id = ? AND owner = ? AND kind = 'conversation'"
        values = (_encode(body), body["id"], owner)
        self.tables.transaction(lambda: self.tables.run(query, *values))

    def add(self, owner: str, id: str, items: Sequence[Item]) -> None:
        """Add items to the end of a conversation. Raises RequestError."""
        self.room.transaction(lambda: self._append(owner, id, items))

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
            start_row = self.tables.one(
                "SELECT position FROM items WHERE record = ? AND id = ?", id, after
            )
            if start_row is None:
                raise RequestError(
                    f"after names no item: {after[:80]!r}", "Give a listed id.", param="after"
                )
            start = start_row[0]
        sign, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
        rows = self.tables.all(
            "SELECT body FROM items WHERE record = ? AND part IN ('input', 'item') "
            + ("" if start is None else f"AND position {sign} ? ")
            + f"ORDER BY position {direction} LIMIT ?",
            id,
            *(() if start is None else (start,)),
            limit + 1,
        )
        return Page([_decode(row[0]) for row in rows[:limit]], len(rows) > limit)

    def all_items(self, owner: str, id: str) -> list[Item] | None:
        """Return all items of a conversation."""
        row = self._find("conversation", owner, id, "id")
        return None if row is None else self._items(id, "item")

    def item(self, owner: str, id: str, record: str | None = None) -> Item | None:
        """Return an item by its id, of one record or of any."""
        row = self.tables.one(
            "SELECT i.body FROM items i JOIN records r ON r.id = i.record "
            "WHERE i.id = ? AND r.owner = ? "
            + ("LIMIT 1" if record is None else "AND r.id = ? LIMIT 1"),
            id,
            owner,
            *(() if record is None else (record,)),
        )
        return None if row is None else dict(_decode(row[0]))

    def delete_item(self, owner: str, record: str, id: str) -> bool:
        """Delete an item of a conversation; return whether there was one."""
        where = "FROM items WHERE record = ? AND id = ?"

        def work() -> bool:
            if self._find("conversation", owner, record, "id") is None:
                return False
            size = sum(
                size_of([row]) for row in self.tables.all(f"SELECT body {where}", record, id)
            )
            self.tables.run(f"DELETE {where}", record, id)
            self.tables.run("UPDATE records SET bytes = bytes - ? WHERE id = ?", size, record)
            self.room.used_bytes -= size
            return size > 0

        return self.room.transaction(work, deletes=True)

    # --- space and time

    @property
    def used_bytes(self) -> int:
        """Of all records."""
        return self.room.used_bytes

    def delete(self, kind: Kind, owner: str, id: str) -> bool:
        """Delete a response or a conversation with its items; return whether there was one. Whoever
        generates the response is to stop."""

        def work() -> bool:
            row = self._find(kind, owner, id, "bytes")
            if row is not None:
                self.room.drop(id, row[0])
                self.leases.release(id)
                self.leases.cancel(id)
            return row is not None

        if self._find(kind, owner, id, "id") is None:
            return False
        return self.room.transaction(work, deletes=True)

    def expire(self) -> None:
        """Delete what has not been created, continued or extended for too long."""
        if self.seconds is None:
            return
        self.files.expire()
        limit = time.time() - self.seconds
        query = "SELECT id, bytes FROM records WHERE used < ? AND text IS NOT NULL"
        if self.tables.one(f"{query} LIMIT 1", limit) is not None:
            self.room.transaction(partial(self._drop_all, query, limit), deletes=True)

    def _drop_all(self, query: str, *values: Any) -> None:
        for id, size in self.tables.all(query, *values):
            self.room.drop(id, size)

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
        size = OVERHEAD + len(encoded) + len(text or "") + len(tokens) + size_of(rows)
        self.room.make(owner, size, self.files.quota_of)
        values = (body["id"], kind, owner, time.time(), size, previous, encoded, text, tokens)
        self.tables.run("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)
        self.tables.many("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
        self.room.used_bytes += size

    def _append(self, owner: str, id: str, items: Sequence[Item]) -> None:
        row = self._find("conversation", owner, id, "bytes")
        if row is None:  # deleted meanwhile: there is nothing to add to
            return
        last = self.tables.one(
            "SELECT COALESCE(MAX(position), -1) FROM items WHERE record = ?", id
        )[0]
        rows = [
            (id, position, item["id"], "item", _encode(item))
            for position, item in enumerate(items, last + 1)
        ]
        size = size_of(rows)
        # Used now, so that it is the last to make room.
        query = "UPDATE records SET used = ?, bytes = bytes + ? WHERE id = ?"
        self.tables.run(query, time.time(), size, id)
        self.room.make(owner, size, self.files.quota_of, id, row[0])
        self.tables.many("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
        self.room.used_bytes += size

    # --- queries

    def _find(self, kind: Kind, owner: str, id: str, columns: str) -> Any:
        query = f"SELECT {columns} FROM records WHERE id = ? AND owner = ? AND kind = ?"
        return self.tables.one(query, id, owner, kind)

    def _items(self, record: str, part: str) -> list[Item]:
        query = "SELECT body FROM items WHERE record = ? AND part = ? ORDER BY position"
        return [_decode(row[0]) for row in self.tables.all(query, record, part)]
