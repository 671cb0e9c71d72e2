"""Files of a checkpoint, which come from anywhere: a named pipe would be waited for without end, a
device has no end, and a file may be larger than memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from inferno.errors import CheckpointError

MAX_TEXT = 256 * 2**20
"""Bytes of a tokenizer, the largest text that a checkpoint has: some have 40 MB."""
MAX_CONFIG = 64 * 2**20
"""Bytes of any other file in JSON. The index of a thousand files has 10 MB."""
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_REMEDY = "Put a file in its place, or remove it."


def check_regular(file: Path, *, folders: bool = False) -> None:
    """Raise CheckpointError if there is something that is not a file, or one of the `folders` that
    are allowed. Links are followed."""
    try:
        kind = stat.S_IFMT(file.stat().st_mode)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    if not (folders and kind == stat.S_IFDIR):
        _check_kind(file, kind)


def opened(file: Path) -> BinaryIO:
    """Open a file to read it. Raises CheckpointError, also for anything that is not a file."""
    try:
        # Without waiting: a pipe would otherwise be opened once it has a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        stream = os.fdopen(descriptor, "rb")
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    try:
        _check_kind(file, stat.S_IFMT(os.fstat(stream.fileno()).st_mode))
    except BaseException:
        stream.close()
        raise
    return stream


def contents(file: Path, most: int = MAX_TEXT) -> bytes:
    """Return what is in a file. Raises CheckpointError for more bytes than `most`."""
    with opened(file) as stream:
        if os.fstat(stream.fileno()).st_size > most:
            raise CheckpointError(
                f"{file} has more than {most >> 20} MiB", "Remove it: nothing needs such a file."
            )
        try:
            return stream.read()
        except OSError as error:
            raise _unreadable(file, error) from error


def _check_kind(file: Path, kind: int) -> None:
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "not a file")
        raise CheckpointError(f"{file} is {what}, not a regular file", _REMEDY)


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    reason = getattr(error, "strerror", None) or error
    return CheckpointError(
        f"{file} cannot be read: {reason}", "Check the path, its links and its permissions."
    )
