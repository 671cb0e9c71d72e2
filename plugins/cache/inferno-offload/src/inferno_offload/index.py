"""Which part of a block is where in the file of parts: a log of what was written and removed."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from attrs import define

Part = tuple[bytes, int]
"""A block's content key, and a cache group."""


class Place(NamedTuple):
    """Where the file of parts has one."""

    offset: int
    checksum: int
    """Of its bytes, and of what they are."""


class Change(NamedTuple):
    """An entry of the log."""

    part: Part
    place: Place | None
    """None: it was removed."""


_ENTRY = struct.Struct("<16sIQQ")
"""Key, group, offset, checksum."""
_SEAL = struct.Struct("<Q")
"""A checksum of the entry. A crash may leave some of it, or anything."""
ENTRY_BYTES = _ENTRY.size + _SEAL.size
_REMOVED = (1 << 64) - 1
_SYNC_FILE_RANGE: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux's."""
_WRITE = 2
"""SYNC_FILE_RANGE_WRITE"""


@define(eq=False)
class Index:
    """The log. An entry is appended once the part's bytes are in the file, so that a crash of the
    process leaves none for bytes that are not. Whether the system has kept them both is for the
    checksums to tell."""

    path: Path
    seed: int
    """Of the checksums: entries of another layout are damaged."""
    most: int
    """Entries that it may have before it is written anew."""
    _descriptor: int = -1
    _count: int = 0

    def read(self) -> dict[Part, Place]:
        """Return where the parts are, written or rewritten last at the end."""
        places = dict[Part, Place]()
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return places
        for change in self.entries(data):
            if change is None:
                continue
            places.pop(change.part, None)
            if change.place is not None:
                places[change.part] = change.place
        return places

    def entries(self, data: bytes) -> Iterator[Change | None]:
        """Return the entries in some bytes of the log; None: one that is not whole."""
        for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
            entry = data[at : at + _ENTRY.size]
            if _SEAL.unpack_from(data, at + _ENTRY.size)[0] != self._seal(entry):
                yield None
                continue
            key, group, offset, checksum = _ENTRY.unpack(entry)
            place = None if offset == _REMOVED else Place(offset, checksum)
            yield Change((key, group), place)

    def write(self, places: Iterable[tuple[Part, Place]]) -> None:
        """Write it anew, whole or not at all. Raises OSError."""
        draft = self.path.with_name(f"{self.path.name}.draft")
        data = b"".join(self._entry(part, place) for part, place in places)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if write_all(descriptor, [memoryview(data)], 0) < len(data):
                raise OSError("the disk is full")
            os.replace(draft, self.path)
        except OSError:
            os.close(descriptor)
            with suppress(OSError):
                draft.unlink()
            raise
        self._use(descriptor)

    def keep(self) -> None:
        """Use the index on disk as it is. Raises OSError."""
        self._use(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def _use(self, descriptor: int) -> None:
        self.close()
        self._descriptor = descriptor
        self._count = os.fstat(descriptor).st_size // ENTRY_BYTES

    def append(self, changes: Sequence[Change]) -> None:
        """Note changes, in order. Raises OSError; then the last of them may not be noted."""
        while changes:
            if self._count + len(changes) > self.most:
                self.write(self.read().items())
            now = changes[: max(1, self.most - self._count)]
            data = b"".join(self._entry(part, place) for part, place in now)
            at = self._count * ENTRY_BYTES  # what an append has left that failed is overwritten
            if write_all(self._descriptor, [memoryview(data)], at) < len(data):
                raise OSError("the disk is full")
            self._count += len(now)
            changes = changes[len(now) :]

    def touch(self) -> None:
        """Let the file be used now."""
        os.utime(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _entry(self, part: Part, place: Place | None) -> bytes:
        offset, checksum = place or (_REMOVED, 0)
        entry = _ENTRY.pack(*part, offset, checksum)
        return entry + _SEAL.pack(self._seal(entry))

    def _seal(self, entry: bytes) -> int:
        return xxhash.xxh3_64_intdigest(entry, seed=self.seed)


def write_all(descriptor: int, buffers: list[memoryview], offset: int) -> int:
    """Write buffers one after another. Returns their bytes, or fewer if there is no more room.
    Raises OSError."""
    done = 0
    while buffers:
        count = os.pwritev(descriptor, buffers, offset + done)
        if not count:
            break
        done += count
        buffers = _after(buffers, count)
    return done


def write_out(descriptor: int, offset: int, nbytes: int) -> None:
    """Let the system begin to write bytes from its memory to disk, where it can be asked to: else
    it does so when there are many, and whoever writes next waits for them. Does not wait."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(descriptor, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _WRITE)


def read_all(descriptor: int, buffers: list[memoryview], offset: int) -> None:
    """Read buffers one after another, as far as the file goes. Raises OSError."""
    while buffers:
        count = os.preadv(descriptor, buffers, offset)
        if not count:
            return
        offset += count
        buffers = _after(buffers, count)


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of buffers after so many bytes."""
    for i, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[i + 1 :]]
        count -= len(buffer)
    return []
