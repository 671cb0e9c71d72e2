"""The folder of packed weights: private to its user, every file in it whole."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PART = ".part"
"""Suffix of files that are being written."""
_YOUNG = 60
"""Seconds for which a writer may not hold its lock yet."""


class FolderError(Exception):
    """The folder cannot be used. The message is a sentence."""


def prepare(folder: Path) -> None:
    """Make the folder if it is missing. Raises FolderError unless it is the user's own and
    other users cannot write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise FolderError(f"{folder} cannot be made: {error.strerror or error}") from error
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise FolderError(f"{folder} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FolderError(f"other users can write to {folder}")


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """Context that writes a file: yields a descriptor, and gives the file its name at the end. If
    the context raises, or the process dies, there is no file of that name, or still the old one."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_PART}")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it has its name: see `clean`
        yield descriptor
        os.fsync(descriptor)
        os.rename(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file, or raise OSError and leave what was there."""
    with replacing(path) as descriptor:
        os.write(descriptor, data)


def clean(folder: Path) -> None:
    """Remove what writers left that have died: nothing holds the lock of such a file."""
    for part in folder.glob(f".*{_PART}"):
        with suppress(OSError):
            if time.time() - part.lstat().st_mtime < _YOUNG:
                continue
            descriptor = os.open(part, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
            finally:
                os.close(descriptor)
