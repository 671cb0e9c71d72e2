"""Stores responses and conversations, for `previous_response_id` and `conversation`."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from inferno.errors import NotFoundError, StoreError
from inferno.server.responses.database import Database
from inferno.server.responses.stored import SCHEMAS
from inferno.server.storage.leases import SECONDS, Heard
from inferno.server.storage.opening import open_tables
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
        address: str | Path | None = None,
        *,
        days: float | None = None,
        max_bytes: int = MAX_BYTES,
        lease_seconds: float = SECONDS,
        disable: Iterable[str] = (),
        only: Iterable[str] = (),
    ) -> None:
        """Open the database of a file, of a URL whose beginning a plugin knows, or in memory.
        Records are deleted `days` after their last use, and the least recently used ones when they
        exceed `max_bytes`; with 0, nothing is stored. What this server is at is another's
        `lease_seconds` after it was last heard. `disable` and `only` are as for a model's plugins.
        Raises OptionError."""
        self.enabled = max_bytes > 0
        self.lease_seconds = lease_seconds
        seconds = None if days is None else days * 86_400
        tables = open_tables(address if self.enabled else None, SCHEMAS, disable, only)
        self.is_shared = tables.shared
        """Whether other servers may use it too."""
        self._database = Database(tables, seconds, max_bytes, lease_seconds)
        self._thread = ThreadPoolExecutor(1, "store")
        self._thread.submit(lambda: None).result()  # a thread that cannot start is told now
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
        except StoreError as error:
            self.count(error)
            raise
        except msgspec.DecodeError as error:
            self.count(error)
            raise StoreError(
                f"the store cannot be used: {error}",
                "Send the whole conversation with store: false, or repair the store.",
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
            what = error.cause if isinstance(error, StoreError) else error
            log.error("the store cannot be used (failure %d): %s", self.errors, what)

    async def beat(self) -> Heard:
        """Say to other servers that this one lives. Raises StoreError."""
        return await self.run(Database.beat)

    @property
    def used_bytes(self) -> int:
        """Bytes of responses and conversations."""
        return self._database.used_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of files and batches."""
        return self._database.files.used_bytes

    def free_bytes(self) -> int | None:
        """Return the free bytes of the store's disk, if they are known."""
        return self._database.tables.free_bytes()

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
