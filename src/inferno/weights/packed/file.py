"""A file of packed weights: named parts, each some bytes and a JSON description.

The format: 8 bytes of magic, 8 of the header's length (little-endian), 32 of the header's SHA-256,
the header, a JSON object, and then the parts, each from a multiple of `ALIGNMENT`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from mmap import ALLOCATIONGRANULARITY, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import define, field, frozen

MAGIC = b"INFPACK1"
ALIGNMENT = max(4096, ALLOCATIONGRANULARITY)
"""A part begins at a page, so that it can be mapped alone."""
_FIXED = 48
"""Bytes before the header."""
_MOST = 1 << 56
"""Bytes that no file has."""
_MAX_HEADER = 64 * 1024 * 1024
_CHUNK = 1 << 24
"""Bytes read or written at once."""


class DamagedFileError(ValueError):
    """The file is not what its writer left there. The message says why, without its name."""


@frozen
class Part:
    """One packed weight, as a kernel provider or a quantization scheme saved it."""

    name: str
    about: Mapping[str, Any]
    """What `data` is, in JSON. Only its owner reads it."""
    data: Sequence[memoryview]
    """Contiguous bytes, written one after the other."""

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.data)


@frozen
class Place:
    """Where a part is stored."""

    about: Mapping[str, Any]
    offset: int
    """In the file."""
    nbytes: int
    sha256: str


@define(eq=False)
class PackedFile:
    """An open file of packed weights. It stays readable after it has been removed."""

    path: Path
    key: Mapping[str, Any]
    """What the parts were made from."""
    about: Mapping[str, Any]
    """For people: the model's name."""
    parts: Mapping[str, Place]
    nbytes: int
    """Of the whole file."""
    _descriptor: int = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file and check its header, owner and size. Raises OSError or DamagedFileError."""
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            _check_owner(status)
            header = _header(descriptor, status.st_size)
            return cls(
                path=path,
                key=header["key"],
                about=header["about"],
                parts={name: Place(**place) for name, place in header["parts"].items()},
                nbytes=status.st_size,
                descriptor=descriptor,
            )
        except (KeyError, TypeError, AttributeError) as error:
            os.close(descriptor)
            raise DamagedFileError(f"its header lacks {error}") from error
        except BaseException:
            os.close(descriptor)
            raise

    def fileno(self) -> int:
        return self._descriptor

    def mapped(self, name: str) -> memoryview:
        """Map a part's bytes. Processes that map the same part share its memory."""
        place = self.parts[name]
        # Private and writable, because torch warns of memory that it cannot write. Nothing does.
        pages = mmap(
            self._descriptor,
            place.nbytes,
            flags=MAP_PRIVATE,
            prot=PROT_READ | PROT_WRITE,
            offset=place.offset,
        )
        return memoryview(pages)

    def read_into(self, name: str, to: memoryview, start: int = 0) -> None:
        """Copy a part's bytes, from byte `start` of it. Raises OSError or DamagedFileError. Other
        threads run meanwhile."""
        _read(self._descriptor, self.parts[name].offset + start, to)

    def damage(self) -> str | None:
        """Read all parts and compare their checksums. Returns what is wrong, or None."""
        for name, place in self.parts.items():
            try:
                sha256 = _sha256_of(self._descriptor, place.offset, place.nbytes)
            except (OSError, DamagedFileError) as error:
                return f"{name} cannot be read: {error}"
            if sha256 != place.sha256:
                return f"the checksum of {name} is wrong"
        return None

    def close(self) -> None:
        """Close the file. What was mapped stays mapped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write(
    descriptor: int,
    key: Mapping[str, Any],
    about: Mapping[str, Any],
    parts: Sequence[Part],
    go_on: Iterator[None],
) -> None:
    """Write a whole file to an empty descriptor. Takes one item of `go_on` per chunk, which may
    raise to end it. Raises OSError."""
    # The header comes first and is known last. With these numbers it is longer than it will be.
    most = {part.name: Place(part.about, _MOST, _MOST, "0" * 64) for part in parts}
    end = _aligned(_FIXED + len(_encoded(key, about, most, _MOST)))
    places = {}
    for part in parts:
        digest, offset, position = hashlib.sha256(), end, end
        for piece in part.data:
            flat = piece.cast("B")
            for start in range(0, flat.nbytes, _CHUNK):
                next(go_on)
                chunk = flat[start : start + _CHUNK]
                digest.update(chunk)
                position += _write(descriptor, position, chunk)
        places[part.name] = Place(part.about, offset, part.nbytes, digest.hexdigest())
        end = _aligned(position)
    header = _encoded(key, about, places, end)
    fixed = MAGIC + len(header).to_bytes(8, "little") + hashlib.sha256(header).digest()
    os.ftruncate(descriptor, end)
    _write(descriptor, 0, memoryview(fixed + header))


def size_of(parts: Sequence[Part]) -> int:
    """Bytes of a file with these parts, without its header."""
    return sum(_aligned(part.nbytes) for part in parts)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _encoded(
    key: Mapping[str, Any], about: Mapping[str, Any], places: Mapping[str, Place], nbytes: int
) -> bytes:
    parts = {
        name: {
            "about": place.about,
            "offset": place.offset,
            "nbytes": place.nbytes,
            "sha256": place.sha256,
        }
        for name, place in places.items()
    }
    header = {"key": key, "about": about, "nbytes": nbytes, "parts": parts}
    return json.dumps(header).encode()


def _header(descriptor: int, nbytes: int) -> dict[str, Any]:
    fixed = bytearray(_FIXED)
    if nbytes < _FIXED:
        raise DamagedFileError(f"it has {nbytes} bytes")
    _read(descriptor, 0, memoryview(fixed))
    length = int.from_bytes(fixed[8:16], "little")
    if fixed[:8] != MAGIC or length > min(_MAX_HEADER, nbytes - _FIXED):
        raise DamagedFileError("bad magic number: this is not a file of packed weights")
    encoded = bytearray(length)
    _read(descriptor, _FIXED, memoryview(encoded))
    if hashlib.sha256(encoded).digest() != fixed[16:]:
        raise DamagedFileError("the checksum of its header is wrong")
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError("its header is not JSON") from error
    if not isinstance(header, dict):
        raise DamagedFileError("its header is not an object")
    if header["nbytes"] != nbytes:
        raise DamagedFileError(f"it has {nbytes} bytes, not {header['nbytes']}")
    for name, place in header["parts"].items():
        if not 0 <= place["offset"] <= place["offset"] + place["nbytes"] <= nbytes:
            raise DamagedFileError(f"{name} is not inside of it")
    return header


def _check_owner(status: os.stat_result) -> None:
    """Refuse a file that another user can have written: its bytes become weights."""
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFileError("it is not a regular file")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise DamagedFileError("it belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DamagedFileError("other users can write to it")


def _read(descriptor: int, offset: int, to: memoryview) -> None:
    done = 0
    while done < to.nbytes:
        count = os.preadv(descriptor, [to[done : done + _CHUNK]], offset + done)
        if not count:
            raise DamagedFileError("it is truncated")
        done += count


def _write(descriptor: int, offset: int, data: memoryview) -> int:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(descriptor, data[done:], offset + done)
    return done


def _sha256_of(descriptor: int, offset: int, nbytes: int) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(nbytes, _CHUNK)))
    for start in range(0, nbytes, _CHUNK):
        piece = buffer[: min(_CHUNK, nbytes - start)]
        _read(descriptor, offset + start, piece)
        digest.update(piece)
    return digest.hexdigest()
