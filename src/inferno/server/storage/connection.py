"""The SQLite database of a server: one connection, for one thread."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from inferno.errors import OptionError
from inferno.server.storage.reserve import Reserve, is_full

T = TypeVar("T")

_APPLICATION = 0x696E6672
"""Marks the file as ours (`PRAGMA application_id`): "infr"."""
# One process writes it: the sizes are counted in memory. Deleted content is overwritten.
_SETTINGS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "foreign_keys = ON",
    "secure_delete = ON",
    # A short log: on a full disk, what it has cannot be moved.
    "wal_autocheckpoint = 200",
)


class Connection:
    """A file, or a database in memory, with its tables."""

    def __init__(self, path: Path | None, schemas: Sequence[str]) -> None:
        """Create what is missing: `schemas` are the tables of each version of the file, in the
        order in which versions added them. Raises OptionError."""
        try:
            self.raw = _open(path)
            self._prepare(schemas)
            self._reserve = Reserve(
                None if path is None else path.with_name(f"{path.name}-reserve")
            )
            self._reserve.fill()
        except sqlite3.Error as error:
            raise OptionError(*explained(path, error)) from error

    def one(self, query: str, *values: Any) -> Any:
        """Return the first row; None for none."""
        return self.raw.execute(query, values).fetchone()

    def all(self, query: str, *values: Any) -> list[Any]:
        return self.raw.execute(query, values).fetchall()

    def delete(self, work: Callable[[], T]) -> T:
        """Do what deletes in a transaction, and return what it returns. On a full disk, it has the
        room that is reserved for this."""
        try:
            with self.raw:
                found = work()
        except sqlite3.OperationalError as error:
            if not is_full(error) or not self._reserve.release():
                raise
            with self.raw:
                found = work()
        self.forget()
        self._reserve.fill()
        return found

    def forget(self) -> None:
        """Move deletions from the log into the database, where they overwrite what is deleted. On a
        full disk that is left for later."""
        try:
            self.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise

    def close(self) -> None:
        self.raw.close()

    def _prepare(self, schemas: Sequence[str]) -> None:
        application, version = (
            self.one(f"PRAGMA {name}")[0] for name in ("application_id", "user_version")
        )
        tables = self.one("SELECT COUNT(*) FROM sqlite_master")[0]
        known = application == _APPLICATION and 0 < version <= len(schemas)
        if (tables or application) and not known:
            raise OptionError(
                "the file of --store is another application's database, or another version's",
                "Give the path of a new file.",
            )
        for setting in _SETTINGS:
            self.raw.execute(f"PRAGMA {setting}")
        if version < len(schemas):
            self.raw.executescript(
                f"BEGIN; {' '.join(schemas[version:])} PRAGMA application_id = {_APPLICATION}; "
                f"PRAGMA user_version = {len(schemas)}; COMMIT;"
            )


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        # Only its user may read the file; SQLite gives its own files the same permissions.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            _check_private(path, os.fstat(descriptor))
        finally:
            os.close(descriptor)
    return sqlite3.connect(path or ":memory:", timeout=1, check_same_thread=False)


def _check_private(path: Path, found: os.stat_result) -> None:
    """Raise OptionError unless the file is this user's own, and nobody else may use it."""
    if not stat.S_ISREG(found.st_mode):
        raise OptionError(f"{path} is not a regular file", "Give the path of a file: --store PATH")
    if found.st_uid != os.geteuid():
        raise OptionError(
            f"{path} belongs to another user, who can read what is stored",
            "Give the path of a new file: --store PATH",
        )
    if found.st_mode & 0o077:
        raise OptionError(
            f"other users may use {path}: its mode is {stat.S_IMODE(found.st_mode):04o}",
            f"If it is a store, keep it to yourself: chmod 600 {path}. Else name a new file.",
        )


def explained(path: Path | None, error: Exception) -> tuple[str, str]:
    """Return the cause and the remedy of an error at opening a file."""
    if "locked" in str(error):
        return f"another process uses {path}", "Stop it, or give each server its own --store."
    return f"cannot use {path} as the store: {error}", "Give the path of a new file: --store PATH"
