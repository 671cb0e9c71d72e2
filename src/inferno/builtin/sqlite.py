"""The store `sqlite`: a file, or a database in memory, of one server."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from inferno.builtin.reserve import Reserve, is_full
from inferno.errors import OptionError, StoreError

T = TypeVar("T")

PATIENCE = 1.0
"""How long a file that another process has open is waited for, in seconds."""
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


class SqliteTables:
    """`contracts.Tables` of a file, which is locked while it is open, or in memory."""

    shared = False

    def __init__(self, path: Path | None, schemas: Sequence[str]) -> None:
        """Create what is missing. Raises OptionError."""
        self._path = path
        try:
            self.raw = _open(path)
            self._prepare(schemas)
            self._reserve = Reserve(
                None if path is None else path.with_name(f"{path.name}-reserve")
            )
            self._reserve.fill()
        except (sqlite3.Error, OSError) as error:
            raise OptionError(*_explained(path, error)) from error

    @classmethod
    def open(cls, address: str | None, schemas: Sequence[str]) -> SqliteTables:
        """Open a file by its path."""
        return cls(None if address is None else Path(address), schemas)

    def one(self, query: str, *values: Any) -> Any:
        try:
            return self.raw.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise _failed(error) from error

    def all(self, query: str, *values: Any) -> list[Any]:
        try:
            return self.raw.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _failed(error) from error

    def run(self, query: str, *values: Any) -> int:
        try:
            return self.raw.execute(query, values).rowcount
        except sqlite3.Error as error:
            raise _failed(error) from error

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self.raw.executemany(query, rows)
        except sqlite3.Error as error:
            raise _failed(error) from error

    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        """On a full disk, what deletes has the room that is reserved for this."""
        try:
            result = self._whole(work)
        except StoreError as error:
            if not (deletes and is_full(error.__cause__) and self._reserve.release()):
                raise
            result = self._whole(work)
        if deletes:
            self._forget()
            self._reserve.fill()
        return result

    def now(self) -> float:
        return time.time()

    def free_bytes(self) -> int | None:
        if self._path is None:
            return None
        try:
            return shutil.disk_usage(self._path.absolute().parent).free
        except OSError:
            return None

    def close(self) -> None:
        self.raw.close()

    def _whole(self, work: Callable[[], T]) -> T:
        try:
            with self.raw:
                return work()
        except sqlite3.Error as error:
            raise _failed(error) from error

    def _forget(self) -> None:
        """Move deletions from the log into the database, where they overwrite what is deleted. On a
        full disk that is left for later."""
        try:
            self.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise _failed(error) from error

    def _prepare(self, schemas: Sequence[str]) -> None:
        application, version = (
            self.raw.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        tables = self.raw.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
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
    return sqlite3.connect(path or ":memory:", timeout=PATIENCE, check_same_thread=False)


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


def _explained(path: Path | None, error: Exception) -> tuple[str, str]:
    """Return the cause and the remedy of an error at opening a file."""
    if isinstance(error, OSError):
        return f"cannot open {path}: {error}", "Give the path of a file: --store PATH"
    if "locked" in str(error):
        return (
            f"another process uses {path}",
            "Stop it, give each server its own --store, or let them share a PostgreSQL database.",
        )
    return f"cannot use {path} as the store: {error}", "Give the path of a new file: --store PATH"


def _failed(error: sqlite3.Error) -> StoreError:
    return StoreError(
        f"the store cannot be used: {error}",
        "Send the whole conversation with store: false, or see the server's disk.",
    )
