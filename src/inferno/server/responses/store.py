"""Stores responses and conversations, for `previous_response_id` and `conversation`."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from inferno.errors import NotFoundError, OptionError, StoreError
from inferno.server.responses.database import Database
from inferno.server.storage.quotas import QuotaOf

P = ParamSpec("P")
T = TypeVar("T")

MAX_BYTES = 256 * 2**20
"""Default size of a store."""
_LOG_SECONDS = 60.0
log = logging.getLogger("inferno.server")
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Store:
    """A database and the one thread that uses it, so that no stream waits for the disk. (Not an
    attrs class: Litestar would inspect it.)"""

    def __init__(
        self,
        path: Path | None = None,
        *,
        days: float | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Open the database in a file, or in memory. Records are deleted `days` after their last
        use, and the least recently used ones when they exceed `max_bytes`; with 0, nothing is
        stored. Raises OptionError."""
        self.enabled = max_bytes > 0
        self._path = path
        seconds = None if days is None else days * 86_400
        try:
            self._database = Database(path if self.enabled else None, seconds, max_bytes)
        except OSError as error:
            raise OptionError(
                f"cannot open {path}: {error}", "Give the path of a file: --store PATH"
            ) from error
        self._thread = ThreadPoolExecutor(1, "store")
        self.errors = 0
        """How often it could not be used."""
        self._logged = -_LOG_SECONDS

    async def run(
        self, method: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the database in its thread. Raises StoreError."""

        def call() -> T:
            self._database.expire()
            return method(self._database, *args, **kwargs)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            self.count(error)
            raise StoreError(
                f"the store cannot be used: {error}",
                "Send the whole conversation with store: false, or see the server's disk.",
            ) from error
        except RuntimeError as error:  # the thread has ended
            raise StoreError("the store is closed", "Send it again.") from error

    def limit(self, quota_of: QuotaOf) -> None:
        """Set what each owner may store."""
        self._database.files.quota_of = quota_of

    def count(self, error: Exception) -> None:
        """Count a failure, and log it unless the last minute has one."""
        self.errors += 1
        if (now := time.monotonic()) - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.error("the store cannot be used (failure %d): %s", self.errors, error)

    @property
    def used_bytes(self) -> int:
        """Bytes of responses and conversations."""
        return self._database.used_bytes

    def free_bytes(self) -> int | None:
        """Return the free bytes of the store's disk; None for a store in memory."""
        if self._path is None or not self.enabled:
            return None
        try:
            return shutil.disk_usage(self._path.absolute().parent).free
        except OSError:
            return None

    def close(self) -> None:
        """Wait for what is being stored, and close the database."""
        self._thread.submit(self._database.close)
        self._thread.shutdown()


def checked_id(id: str, what: str) -> str:
    """Return an id of a path or a body. Raises NotFoundError for what cannot be one."""
    if not _ID.fullmatch(id):
        raise not_found(what, id)
    return id


def not_found(what: str, id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no {what} {id[:80]!r}",
        "It was deleted, expired, never stored, or belongs to another key.",
    )
