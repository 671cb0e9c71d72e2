"""Files and batches in the database. Nothing makes room for them: what does not fit is refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from attrs import frozen

from inferno.errors import RequestError
from inferno.server.storage.connection import Connection
from inferno.server.storage.quotas import PLACES, Quota, QuotaOf, over_quota, used

SCHEMA = """
CREATE TABLE files (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, created REAL NOT NULL,
  bytes INTEGER NOT NULL, ended INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX files_by_owner ON files(owner, kind, created);
CREATE TABLE parts (
  file TEXT NOT NULL REFERENCES files(id) ON DELETE CASCADE, position INTEGER NOT NULL,
  body BLOB NOT NULL, PRIMARY KEY (file, position)
) WITHOUT ROWID;
"""
MAX_OWNED = 10_000
"""Files, and batches, of one owner."""
_OVERHEAD = 256
_encode, _decode = msgspec.json.encode, msgspec.json.decode

Kind = Literal["file", "batch"]
Body = dict[str, Any]


@frozen
class Unfinished:
    """A batch that is to be run."""

    owner: str
    body: Body


class Files:
    """Files, whose content is stored in parts, and batches. Both are JSON objects by id and
    owner."""

    def __init__(
        self,
        tables: Connection,
        seconds: float | None,
        max_bytes: int,
        quota_of: QuotaOf = lambda owner: Quota(),
    ) -> None:
        """`seconds` after they were made, files and ended batches are deleted. `max_bytes` is for
        all of them together."""
        self.quota_of = quota_of
        self._tables, self._db = tables, tables.raw
        self._seconds, self._max_bytes = seconds, max_bytes

    def create(
        self, kind: Kind, owner: str, body: Body, parts: Iterable[bytes] = (), *, ended: bool = True
    ) -> None:
        """Store a new object with its content. Raises RequestError if there is no room."""
        parts = list(parts)
        size = sum(map(len, parts)) + _OVERHEAD
        [count] = self._tables.one(
            "SELECT COUNT(*) FROM files WHERE owner = ? AND kind = ?", owner, kind
        )
        most = self.quota_of(owner).files if kind == "file" else None
        if count >= (MAX_OWNED if most is None else most):
            raise RequestError(
                f"there are {count} objects of kind {kind}", "Delete some.", code="store_full"
            )
        self._check_room(owner, size)
        with self._db:
            self._db.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)",
                (body["id"], kind, owner, time.time(), size, ended, _encode(body)),
            )
            self._db.executemany(
                "INSERT INTO parts VALUES (?, ?, ?)",
                ((body["id"], i, part) for i, part in enumerate(parts)),
            )

    def find(self, kind: Kind, owner: str, id: str) -> Body | None:
        """Return an object."""
        row = self._tables.one(
            "SELECT body FROM files WHERE id = ? AND owner = ? AND kind = ?", id, owner, kind
        )
        return None if row is None else dict(_decode(row[0]))

    def update(self, body: Body, *, ended: bool = True) -> None:
        """Replace an object."""
        with self._db:
            self._replace(body, ended)

    def append(self, file: str, part: bytes, batch: Body) -> None:
        """Add to a file's content, and replace the batch that writes it, at once. Raises
        RequestError if there is no room."""
        [owner] = self._tables.one("SELECT owner FROM files WHERE id = ?", batch["id"])
        self._check_room(owner, len(part))
        with self._db:
            self._db.execute(
                "INSERT INTO parts SELECT ?, COALESCE(MAX(position), -1) + 1, ? FROM parts "
                "WHERE file = ?",
                (file, part, file),
            )
            self._db.execute("UPDATE files SET bytes = bytes + ? WHERE id = ?", (len(part), file))
            self._replace(batch, ended=False)

    def parts(self, id: str) -> list[bytes]:
        """Return a file's whole content."""
        rows = self._tables.all("SELECT body FROM parts WHERE file = ? ORDER BY position", id)
        return [row[0] for row in rows]

    def part(self, id: str, position: int) -> bytes | None:
        """Return one part of a file's content; None after the last."""
        row = self._tables.one(
            "SELECT body FROM parts WHERE file = ? AND position = ?", id, position
        )
        return None if row is None else bytes(row[0])

    def measure(self, owner: str, ids: Iterable[str]) -> None:
        """Set the `bytes` of files to which content was added."""
        for id in ids:
            if (body := self.find("file", owner, id)) is not None:
                query = "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM parts WHERE file = ?"
                self.update(body | {"bytes": int(self._tables.one(query, id)[0])})

    def page(
        self, kind: Kind, owner: str, after: str | None, limit: int, order: str, **members: str
    ) -> tuple[Sequence[Body], bool] | None:
        """Return `limit` objects that have these members, from after an object's id, and whether
        there are more; None if there is no such object. `order` is asc or desc."""
        sign, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
        start = None
        if after is not None:
            start = self._tables.one(
                "SELECT created, id FROM files WHERE id = ? AND owner = ? AND kind = ?",
                after,
                owner,
                kind,
            )
            if start is None:
                return None
        rows = self._db.execute(
            "SELECT body FROM files WHERE owner = ? AND kind = ? "
            + (f"AND (created, id) {sign} (?, ?) " if start is not None else "")
            + f"ORDER BY created {direction}, id {direction}",
            (owner, kind, *(start or ())),
        )
        bodies = []
        for row in rows:
            body = _decode(row[0])
            if all(body.get(name) == value for name, value in members.items()):
                bodies.append(body)
            if len(bodies) > limit:
                return bodies[:limit], True
        return bodies, False

    def delete(self, kind: Kind, owner: str, id: str) -> bool:
        """Delete an object and its content; return whether there was one."""
        query = "DELETE FROM files WHERE id = ? AND owner = ? AND kind = ?"
        done = self._tables.delete(lambda: self._db.execute(query, (id, owner, kind)))
        return done.rowcount > 0

    def unfinished(self) -> list[Unfinished]:
        """Return the batches that have not ended, the oldest first."""
        rows = self._tables.all(
            "SELECT owner, body FROM files WHERE kind = 'batch' AND NOT ended ORDER BY created, id"
        )
        return [Unfinished(owner, _decode(body)) for owner, body in rows]

    def expire(self) -> None:
        """Delete what was made too long ago."""
        if self._seconds is None:
            return
        query, limit = "FROM files WHERE ended AND created < ?", time.time() - self._seconds
        if self._tables.one(f"SELECT 1 {query} LIMIT 1", limit) is not None:
            self._tables.delete(lambda: self._db.execute(f"DELETE {query}", (limit,)))

    def _replace(self, body: Body, ended: bool) -> None:
        self._db.execute(
            "UPDATE files SET body = ?, ended = ? WHERE id = ?", (_encode(body), ended, body["id"])
        )

    def _check_room(self, owner: str, size: int) -> None:
        quota = self.quota_of(owner).bytes
        if quota is not None and used(self._tables, owner) + size > quota:
            raise over_quota(size, quota)
        query = "SELECT COALESCE(SUM(bytes), 0), COALESCE(SUM(bytes * (owner = ?)), 0) FROM files"
        taken, own = self._tables.one(query, owner)
        left = self._max_bytes - taken
        if size > left or (owner and own + size > PLACES * left):
            raise RequestError(
                f"{size} bytes do not fit: the store has {self._max_bytes} bytes for files, "
                f"{taken} are used, {own} of them by this key",
                "Delete files, or start the server with a larger --store-size.",
                code="store_full",
            )
