"""A toy store that several servers share: an SQLite file that none of them locks for itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from inferno.builtin.sqlite import SqliteTables
from inferno.errors import OptionError, StoreError

T = TypeVar("T")


class SharedSqlite(SqliteTables):
    shared = True

    def __init__(self, path: Path, schemas: Sequence[str]) -> None:
        self._path = path
        self.is_away = False
        """Whether nothing works, as if the database's server were stopped."""
        self.raw = sqlite3.connect(path, 10, isolation_level=None, check_same_thread=False)
        self.raw.execute("PRAGMA journal_mode = WAL")
        self.raw.execute("PRAGMA foreign_keys = ON")
        try:
            self.transaction(lambda: self._migrate(schemas))
        except OptionError:
            self.raw.close()
            raise

    def _migrate(self, schemas: Sequence[str]) -> None:
        [version] = self.one("PRAGMA user_version")
        if version > len(schemas):
            raise OptionError("it is of a later version", "Upgrade.")
        for statement in "".join(schemas[version:]).split(";"):
            self.run(statement)
        self.run(f"PRAGMA user_version = {len(schemas)}")

    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        if self.is_away:
            raise StoreError("the store cannot be reached", "Start it.")
        self.run("BEGIN IMMEDIATE")
        try:
            result = work()
        except BaseException:
            self.run("ROLLBACK")
            raise
        self.run("COMMIT")
        return result
