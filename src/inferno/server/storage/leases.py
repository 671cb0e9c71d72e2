"""Which server generates a response or runs a batch. A server says again and again that it lives;
what one that no longer does had in hand is failed, or another's.

Each response in the background, and each batch that is run, is leased to one server. No work is
done by two: a server stops what it has once it has not been heard for as long as a lease lasts, by
its own clock from before it spoke, and others take it over after that, by the store's clock. What a
server stores of its work is refused when the lease is gone, should it have been frozen meanwhile.
"""

from __future__ import annotations

import math
import uuid

from attrs import frozen

from inferno.contracts import Tables

SECONDS = 30.0
"""For which a server's leases last after it was heard."""
SCHEMA = """
CREATE TABLE servers (id TEXT PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE leases (id TEXT PRIMARY KEY, server TEXT NOT NULL, cancelled INTEGER NOT NULL);
CREATE INDEX leases_by_server ON leases(server);
"""


@frozen
class Heard:
    """What a server learns when it says that it lives."""

    kept: bool
    """Whether its leases are still its own."""
    cancelled: tuple[str, ...]
    """What it works at and shall stop."""


class Leases:
    """A server's leases. What changes them is called in transactions."""

    def __init__(self, tables: Tables, seconds: float) -> None:
        self.server = uuid.uuid4().hex
        self._tables = tables
        # Whoever has a store to itself is alive as long as it has it.
        self._seconds = seconds if tables.shared else math.inf

    def begin(self) -> None:
        """Enter this server; of a store that is not shared, as the only one."""
        if not self._tables.shared:
            self._tables.run("DELETE FROM servers")
        self._enter()

    def beat(self) -> Heard:
        """Say that this server lives."""
        now = self._tables.now()
        renewed = self._tables.run(
            "UPDATE servers SET until = ? WHERE id = ? AND until >= ?",
            now + self._seconds,
            self.server,
            now,
        )
        if not renewed:
            self._enter()
        rows = self._tables.all(
            "SELECT id FROM leases WHERE server = ? AND cancelled = 1", self.server
        )
        return Heard(renewed > 0, tuple(id for (id,) in rows))

    def take(self, id: str) -> None:
        """Lease what nobody works at."""
        self._tables.run("DELETE FROM leases WHERE id = ?", id)
        self._tables.run("INSERT INTO leases VALUES (?, ?, 0)", id, self.server)

    def has(self, id: str) -> bool:
        """Whether this server works at it."""
        query = "SELECT 1 FROM leases WHERE id = ? AND server = ?"
        return self._tables.one(query, id, self.server) is not None

    def is_held(self, id: str) -> bool:
        """Whether a server that lives works at it."""
        return (
            self._tables.one(
                "SELECT 1 FROM leases JOIN servers ON servers.id = leases.server "
                "WHERE leases.id = ? AND until >= ?",
                id,
                self._tables.now(),
            )
            is not None
        )

    def release(self, id: str) -> None:
        self._tables.run("DELETE FROM leases WHERE id = ? AND server = ?", id, self.server)

    def cancel(self, id: str) -> bool:
        """Ask whoever works at it to stop. Returns whether there is one."""
        return self._tables.run("UPDATE leases SET cancelled = 1 WHERE id = ?", id) > 0

    def is_cancelled(self, id: str) -> bool:
        query = "SELECT 1 FROM leases WHERE id = ? AND cancelled = 1"
        return self._tables.one(query, id) is not None

    def end_dead(self) -> tuple[str, ...]:
        """Forget the servers that no longer live, and their leases. Returns those that were to be
        cancelled."""
        now = self._tables.now()
        dead = "server NOT IN (SELECT id FROM servers WHERE until >= ?)"
        rows = self._tables.all(f"SELECT id, cancelled FROM leases WHERE {dead}", now)
        if rows:
            self._tables.run(f"DELETE FROM leases WHERE {dead}", now)
        self._tables.run("DELETE FROM servers WHERE until < ?", now)
        return tuple(id for id, cancelled in rows if cancelled)

    def hand_over(self) -> None:
        """Let others take over what this server has: it ends."""
        self._tables.run("DELETE FROM servers WHERE id = ?", self.server)

    def _enter(self) -> None:
        self._tables.run("DELETE FROM leases WHERE server = ?", self.server)
        self._tables.run("DELETE FROM servers WHERE id = ?", self.server)
        until = self._tables.now() + self._seconds
        self._tables.run("INSERT INTO servers VALUES (?, ?)", self.server, until)
