"""Room on the disk for deleting: where it is full, SQLite can delete nothing, for that is written
to its log first."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from attrs import define

SIZE = 2 * 2**20


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that the disk is full."""
    return isinstance(error, sqlite3.OperationalError) and "full" in str(error)


@define
class Reserve:
    """A file that is given up when the disk is full. Without a path there is none."""

    path: Path | None
    size: int = SIZE

    def fill(self) -> None:
        """Take the room, as far as there is any."""
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                missing = self.size - os.fstat(descriptor).st_size
                if missing > 0:
                    os.lseek(descriptor, 0, os.SEEK_END)
                    os.write(descriptor, bytes(missing))
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Give the room up. Returns whether there was any."""
        if self.path is None:
            return False
        try:
            had = self.path.stat().st_size > 0
            os.truncate(self.path, 0)
        except OSError:
            return False
        return had
