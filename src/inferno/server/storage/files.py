"""Files and batches in the store. Nothing makes room for them: what does not fit is refused."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import msgspec
from attrs import frozen

from inferno.contracts import Tables
from inferno.errors import QueueFullError, RequestError
from inferno.server.storage.leases import Leases
from inferno.server.storage.objects import ENDED, enter
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


class LeaseLostError(Exception):
    """A batch is another server's now, or deleted: this one must not go on."""


class Files:
    """Files, whose content is stored in parts, and batches. Both are JSON objects by id and
    owner."""

    def __init__(
        self,
        tables: Tables,
        leases: Leases,
        seconds: float | None,
        max_bytes: int,
        quota_of: QuotaOf = lambda owner: Quota(),
    ) -> None:
        """`seconds` after they were made, files and ended batches are deleted. `max_bytes` is for
        all of them together."""
        self.quota_of = quota_of
        self._tables, self._leases = tables, leases
        self._seconds, self._max_bytes = seconds, max_bytes
        self.used_bytes = self.counted()
        """Of all of them: of a store that is shared, as of this server's last change."""

    def counted(self) -> int:
        """Return the bytes of all of them."""
        return int(self._tables.one("SELECT COALESCE(SUM(bytes), 0) FROM files")[0])

    def create(
        self, kind: Kind, owner: str, body: Body, parts: Iterable[bytes] = (), *, ended: bool = True
    ) -> None:
        """Store a new object with its content. Raises RequestError if there is no room."""
        parts = list(parts)
        self.used_bytes = self._tables.transaction(
            lambda: self._create(kind, owner, body, parts, ended)
        )

    def create_batch(self, owner: str, body: Body, most: int) -> None:
        """Store a batch that is to be run. Raises QueueFullError if `most` of the owner have not
        ended, RequestError if there is no room."""

        def work() -> int:
            if sum(each.owner == owner for each in self.unfinished()) >= most:
                raise QueueFullError(
                    f"{most} batches have not ended", "Wait for one of them, or cancel it."
                )
            return self._create("batch", owner, body, (), False)

        self.used_bytes = self._tables.transaction(work)

    def _create(
        self, kind: Kind, owner: str, body: Body, parts: Sequence[bytes], ended: bool
    ) -> int:
        """Store it. Returns the bytes that are used then."""
        size = sum(map(len, parts)) + _OVERHEAD
        [count] = self._tables.one(
            "SELECT COUNT(*) FROM files WHERE owner = ? AND kind = ?", owner, kind
        )
        most = self.quota_of(owner).files if kind == "file" else None
        if count >= (MAX_OWNED if most is None else most):
            raise RequestError(
                f"there are {count} objects of kind {kind}", "Delete some.", code="store_full"
            )
        used_bytes = self._check_room(owner, size)
        values = (body["id"], kind, owner, time.time(), size, int(ended), _encode(body))
        self._tables.run("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
        rows = [(body["id"], i, part) for i, part in enumerate(parts)]
        self._tables.many("INSERT INTO parts VALUES (?, ?, ?)", rows)
        return used_bytes

    def find(self, kind: Kind, owner: str, id: str) -> Body | None:
        """Return an object."""
        row = self._tables.one(
            "SELECT body FROM files WHERE id = ? AND owner = ? AND kind = ?", id, owner, kind
        )
        return None if row is None else dict(_decode(row[0]))

    def update(self, body: Body) -> None:
        """Replace an object that has ended."""
        self._tables.transaction(lambda: self._replace(body, ended=True))

    def append(self, file: str, part: bytes, batch: Body) -> None:
        """Add to a file's content, and replace the batch that writes it, at once. Raises
        RequestError if there is no room, LeaseLostError."""

        def work() -> int:
            self._check_lease(batch["id"])
            [owner] = self._tables.one("SELECT owner FROM files WHERE id = ?", batch["id"])
            used_bytes = self._check_room(owner, len(part))
            self._tables.run(
                "INSERT INTO parts SELECT ?, COALESCE(MAX(position), -1) + 1, ? FROM parts "
                "WHERE file = ?",
                file,
                part,
                file,
            )
            self._tables.run("UPDATE files SET bytes = bytes + ? WHERE id = ?", len(part), file)
            self._replace(batch, ended=False)
            return used_bytes

        self.used_bytes = self._tables.transaction(work)

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

    def _measure(self, owner: str, ids: Iterable[str]) -> None:
        """Set the `bytes` of files to which content was added."""
        for id in ids:
            if (body := self.find("file", owner, id)) is not None:
                query = "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM parts WHERE file = ?"
                self._replace(body | {"bytes": int(self._tables.one(query, id)[0])}, ended=True)

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
        rows = self._tables.all(
            "SELECT body FROM files WHERE owner = ? AND kind = ? "
            + (f"AND (created, id) {sign} (?, ?) " if start is not None else "")
            + f"ORDER BY created {direction}, id {direction}",
            owner,
            kind,
            *(start or ()),
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
        return self._delete(query, id, owner, kind) > 0

    def _delete(self, query: str, *values: Any) -> int:
        def work() -> tuple[int, int]:
            return self._tables.run(query, *values), self.counted()

        count, self.used_bytes = self._tables.transaction(work, deletes=True)
        return count

    def expire(self) -> None:
        """Delete what was made too long ago."""
        if self._seconds is None:
            return
        query, limit = "FROM files WHERE ended = 1 AND created < ?", time.time() - self._seconds
        if self._tables.one(f"SELECT 1 {query} LIMIT 1", limit) is not None:
            self._delete(f"DELETE {query}", limit)

    # --- batches

    def unfinished(self) -> list[Unfinished]:
        """Return the batches that have not ended, the oldest first."""
        rows = self._tables.all(
            "SELECT owner, body FROM files WHERE kind = 'batch' AND ended = 0 ORDER BY created, id"
        )
        return [Unfinished(owner, _decode(body)) for owner, body in rows]

    def claim(self, busy: Collection[str], without: Collection[str]) -> list[Unfinished]:
        """Lease the oldest batch of each owner that has none running, on any server. Those of the
        owners `busy` and the batches `without` are left out."""

        def work() -> list[Unfinished]:
            known, batches = set(busy), dict[str, Unfinished]()
            for each in self.unfinished():
                id = each.body["id"]
                if each.owner in known or id in without:
                    continue
                if self._leases.is_held(id) and not self._leases.has(id):
                    known.add(each.owner)
                    batches.pop(each.owner, None)
                else:
                    batches.setdefault(each.owner, each)
            for owner, each in [*batches.items()]:
                if self._leases.is_cancelled(each.body["id"]):
                    self._cancelled(batches.pop(owner).body)
                else:
                    self._leases.take(each.body["id"])
            return [*batches.values()]

        return self._tables.transaction(work) if self.unfinished() else []

    def begin(self, body: Body) -> None:
        """Replace a batch that is run. Raises LeaseLostError."""

        def work() -> None:
            self._check_lease(body["id"])
            self._replace(body, ended=False)

        self._tables.transaction(work)

    def end(self, owner: str, body: Body, written: Iterable[str]) -> None:
        """Replace a batch that has been run, and set the `bytes` of the files that it wrote. Raises
        LeaseLostError."""
        written = list(written)

        def work() -> None:
            self._check_lease(body["id"])
            self._measure(owner, written)
            self._replace(body, ended=True)
            self._leases.release(body["id"])

        self._tables.transaction(work)

    def give_up(self, id: str) -> None:
        """Let another server run a batch."""

        def work() -> None:
            if self._leases.is_cancelled(id):
                self.end_cancelled(id)
            self._leases.release(id)

        self._tables.transaction(work)

    def cancel(self, owner: str, id: str) -> Body | None:
        """Cancel a batch that this server does not run: one that another runs is to be stopped by
        it. Returns it as it is then; None if there is none. Raises RequestError if it has ended."""

        def work() -> Body | None:
            body = self.find("batch", owner, id)
            if body is None:
                return None
            if body["status"] in ENDED:
                raise RequestError(
                    f"the batch {id} is {body['status']}",
                    "Only one that has not ended can be cancelled.",
                    param="id",
                )
            if self._leases.is_held(id) and not self._leases.has(id):
                self._leases.cancel(id)
                enter(body, "cancelling")
                return body
            self._cancelled(body)
            return body

        return self._tables.transaction(work)

    def end_cancelled(self, id: str) -> None:
        """Let a batch be cancelled whose server is gone. Called in a transaction."""
        row = self._tables.one("SELECT body FROM files WHERE id = ? AND ended = 0", id)
        if row is not None:
            self._cancelled(_decode(row[0]))

    def _cancelled(self, body: Body) -> None:
        enter(body, "cancelled")
        self._replace(body, ended=True)
        self._leases.release(body["id"])

    def _check_lease(self, id: str) -> None:
        if not self._leases.has(id):
            raise LeaseLostError

    def _replace(self, body: Body, *, ended: bool) -> None:
        query = "UPDATE files SET body = ?, ended = ? WHERE id = ?"
        self._tables.run(query, _encode(body), int(ended), body["id"])

    def _check_room(self, owner: str, size: int) -> int:
        """Return the bytes that are used once `size` more are. Raises RequestError."""
        quota = self.quota_of(owner).bytes
        if quota is not None and used(self._tables, owner) + size > quota:
            raise over_quota(size, quota)
        query = "SELECT COALESCE(SUM(bytes), 0), COALESCE(SUM(CASE WHEN owner = ? THEN bytes "
        query += "ELSE 0 END), 0) FROM files"
        taken, owned = map(int, self._tables.one(query, owner))
        left = self._max_bytes - taken
        if size > left or (owner and owned + size > PLACES * left):
            raise RequestError(
                f"{size} bytes do not fit: the store has {self._max_bytes} bytes for files, "
                f"{taken} are used, {owned} of them by this key",
                "Delete files, or start the server with a larger --store-size.",
                code="store_full",
            )
        return taken + size
