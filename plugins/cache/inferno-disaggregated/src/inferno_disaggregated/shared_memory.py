"""Memory of the prefill process that the decode process maps, on one machine.

It is a file in /dev/shm with a random name, for this user only. The name is removed once the other
end has mapped it, and the memory with the last of the two processes. A name that a crash has left
behind has no lock, and is removed at the next start.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import stat
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
from attrs import define, field

from inferno_disaggregated.pieces import Bytes

FOLDER = Path("/dev/shm")
_PREFIX = "inferno-link-"
_NAME = re.compile(_PREFIX + "[0-9a-f]{32}")
_ALIGN = 64
_GROWTH = 32 << 20


@define(eq=False)
class Arena:
    """Shared memory of one other end, given out in runs of bytes. Threads may share it."""

    name: str
    nbytes: int
    _file: int
    _map: mmap.mmap
    _free: list[tuple[int, int]] = field(init=False)
    """Offsets and sizes, in order; no two of them touch."""
    _reserved: int = 0
    """Bytes that the system has promised to have."""
    _lock: threading.Lock = field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self._free = [(0, self.nbytes)]

    @classmethod
    def create(cls, nbytes: int) -> Arena | None:
        """Return new memory, of which nothing is taken yet. None where there can be none."""
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        name = _PREFIX + secrets.token_hex(16)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(FOLDER / name, flags, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, nbytes)
            return cls(name, nbytes, file, mmap.mmap(file, nbytes))
        except OSError:
            os.close(file)
            _unlink(name)
            return None

    def take(self, nbytes: int) -> int | None:
        """Return the offset of a run of bytes, or None if there is no room."""
        nbytes = -(-nbytes // _ALIGN) * _ALIGN
        with self._lock:
            for i, (offset, size) in enumerate(self._free):
                if size >= nbytes:
                    if not self._reserve(offset + nbytes):
                        return None
                    rest = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                    self._free[i : i + 1] = rest
                    return offset
        return None

    def _reserve(self, stop: int) -> bool:
        """Have the system promise the leading bytes: a write beyond what it has would be fatal."""
        if stop <= self._reserved:
            return True
        size = min(self.nbytes, max(stop, self._reserved + _GROWTH)) - self._reserved
        try:
            os.posix_fallocate(self._file, self._reserved, size)
        except OSError:
            return False
        self._reserved += size
        return True

    def give_back(self, offset: int, nbytes: int) -> None:
        nbytes = -(-nbytes // _ALIGN) * _ALIGN
        with self._lock:
            free = list[tuple[int, int]]()
            for start, size in sorted([*self._free, (offset, nbytes)]):
                if free and sum(free[-1]) == start:
                    free[-1] = free[-1][0], free[-1][1] + size
                else:
                    free.append((start, size))
            self._free = free

    @property
    def address(self) -> int:
        """Where it is in this process."""
        return int(self.view(0, 1).ctypes.data)

    def reserve_all(self) -> bool:
        """Have the system promise all of it. Returns whether it does."""
        with self._lock:
            return self._reserve(self.nbytes)

    def view(self, offset: int, nbytes: int) -> Bytes:
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def hide(self) -> None:
        """Remove the name."""
        _unlink(self.name)

    def close(self) -> None:
        """Let the memory go, once nothing here reads it."""
        self.hide()
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file, self._free = -1, []


def attach(name: str, nbytes: int) -> Bytes | None:
    """Map another process' memory, to read. None if it is not there, or is not this user's."""
    if not _NAME.fullmatch(name) or not nbytes:
        return None
    try:
        file = os.open(FOLDER / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        if status.st_size != nbytes:
            return None
        return np.frombuffer(mmap.mmap(file, nbytes, prot=mmap.PROT_READ), np.uint8)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)


def remove_stale() -> None:
    """Remove what processes of this user that have ended have left behind."""
    for path in FOLDER.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def _unlink(name: str) -> None:
    with suppress(OSError):
        (FOLDER / name).unlink()
