"""How much records take, and what is deleted so that others fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from inferno.contracts import Tables
from inferno.errors import RequestError
from inferno.server.storage.quotas import QuotaOf, next_to_go, oldest, over_quota, used

T = TypeVar("T")
SCHEMA = """
CREATE TABLE totals (bytes INTEGER NOT NULL);
INSERT INTO totals SELECT COALESCE(SUM(bytes), 0) FROM records;
"""
"""For stores that several servers share: one that has a store to itself counts in memory."""


class Room:
    """The bytes of all records, which change in its transactions only."""

    def __init__(self, tables: Tables, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._tables = tables
        self.used_bytes = self.counted()
        """Of all records: of a store that is shared, as of this server's last transaction."""

    def counted(self) -> int:
        return int(self._tables.one("SELECT COALESCE(SUM(bytes), 0) FROM records")[0])

    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        """Do `work` in a transaction. If it fails, nothing was added or deleted."""
        before = self.used_bytes
        try:
            if self._tables.shared:
                return self._tables.transaction(lambda: self._shared(work), deletes=deletes)
            return self._tables.transaction(lambda: self._own(work, before), deletes=deletes)
        except BaseException:
            self.used_bytes = before
            raise

    def _own(self, work: Callable[[], T], before: int) -> T:
        self.used_bytes = before
        return work()

    def _shared(self, work: Callable[[], T]) -> T:
        before = self.used_bytes = self._tables.one("SELECT bytes FROM totals")[0]
        result = work()
        if self.used_bytes != before:
            self._tables.run("UPDATE totals SET bytes = ?", self.used_bytes)
        return result

    def make(
        self, owner: str, size: int, quota_of: QuotaOf, keep: str = "", already: int = 0
    ) -> None:
        """Delete records, used longest ago first, until `size` bytes fit: the owner's own while
        there are too many for its quota, then those of the owner who has most. The record `keep`,
        which has `already` bytes, stays. Raises RequestError."""
        if size + already > self.max_bytes:
            raise RequestError(
                f"this takes {size + already} bytes to store, but the store has {self.max_bytes}",
                "Send store: false, or start the server with a larger --store-size.",
                param="store",
            )
        quota = quota_of(owner).bytes
        while quota is not None and used(self._tables, owner) + size > quota:
            if (mine := oldest(self._tables, owner, keep)) is None:
                raise over_quota(size, quota)
            self.drop(*mine)
        while self.used_bytes + size > self.max_bytes:
            if (last := next_to_go(self._tables, keep)) is None:
                raise RequestError(
                    "the store is full of responses that have not ended",
                    "Wait for them, or start the server with a larger --store-size.",
                    param="store",
                    code="store_full",
                )
            self.drop(*last)

    def drop(self, id: str, size: int) -> None:
        """Delete a record of that size, if it is still there."""
        if self._tables.run("DELETE FROM records WHERE id = ?", id):
            self.used_bytes -= size
