"""The store of packed weights: one file for each model and way of packing it, bounded in size."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

from attrs import frozen

from inferno.weights.packed.file import DamagedFileError, PackedFile, Part, size_of, write
from inferno.weights.packed.folder import FolderError, clean, prepare, replacing

DEFAULT_LIMIT = 32 * 1024**3
"""Bytes of all files together."""
_SPARE = 0.05
"""Share of the disk that is left free."""
_SUFFIX = ".packed"

log = logging.getLogger("inferno.weights.packed")


@frozen
class Entry:
    """A file of the store."""

    name: str
    """Its name in the folder, without the suffix."""
    nbytes: int
    used: float
    """When it was last used, in seconds since the epoch."""
    about: Mapping[str, Any]
    """The model's name, and other things for people. Empty if the file is damaged."""
    damage: str | None = None
    """Why it cannot be used, if it cannot."""


@frozen
class PackedStore:
    """A folder of packed weights. `key` is any JSON that the packed bytes depend on: equal keys,
    equal bytes. Every method may be called by several processes at once, and none but `remove`
    raises for what it finds in the folder."""

    folder: Path
    limit: int = DEFAULT_LIMIT

    def ready(self) -> bool:
        """Make the folder. Returns whether it can be used."""
        try:
            prepare(self.folder)
        except FolderError as error:
            log.warning("packed weights are not kept: %s", error)
            return False
        return True

    def open(self, key: Mapping[str, Any]) -> PackedFile | None:
        """Open the file of that key and note that it was used; None if there is none. A damaged
        one is removed. The caller closes it."""
        path = self._path(key)
        try:
            prepare(self.folder)
            file = PackedFile.open(path)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            log.warning("%s is not used: %s", path, error)
            with suppress(OSError):
                path.unlink()
            return None
        except (OSError, FolderError) as error:
            log.warning("packed weights are not read: %s", error)
            return None
        if file.key != json.loads(json.dumps(key)):
            file.close()
            return None
        with suppress(OSError):
            os.utime(path)
        return file

    def write(
        self,
        key: Mapping[str, Any],
        about: Mapping[str, Any],
        parts: Sequence[Part],
        go_on: Iterator[None] | None = None,
    ) -> Path | None:
        """Write the file of that key, and remove those that were used longest ago until all fit.
        Returns its path; None if it does not fit or cannot be written. Takes one item of `go_on`
        per chunk, which may raise to end it."""
        path, nbytes = self._path(key), size_of(parts)
        try:
            prepare(self.folder)
            clean(self.folder)
            if not self._make_room(nbytes):
                return None
            with replacing(path) as descriptor:
                if hasattr(os, "posix_fallocate") and nbytes:  # fails now if the disk is full
                    os.posix_fallocate(descriptor, 0, nbytes)
                write(descriptor, key, about, parts, go_on or repeat(None))
        except (OSError, FolderError) as error:
            log.warning("packed weights are not kept: %s", error)
            return None
        return path

    def entries(self) -> list[Entry]:
        """List the files, the one used last first."""
        entries = []
        for path in self._files():
            with suppress(FileNotFoundError):
                entries.append(_entry(path))
        return sorted(entries, key=lambda entry: -entry.used)

    def damage(self, name: str) -> str | None:
        """Read a whole file and compare its checksums. Returns what is wrong, or None."""
        try:
            with PackedFile.open(self._named(name)) as file:
                return file.damage()
        except (OSError, DamagedFileError) as error:
            return str(error)

    def remove(self, name: str) -> None:
        """Remove a file. Processes that have opened it keep its bytes. Raises OSError."""
        self._named(name).unlink()

    def _make_room(self, nbytes: int) -> bool:
        """Remove files, those used longest ago first, until `nbytes` more fit the limit and the
        disk. Returns False, and removes nothing, if they cannot fit."""
        entries = self.entries()
        disk = shutil.disk_usage(self.folder)
        used = sum(entry.nbytes for entry in entries)
        free = disk.free - int(disk.total * _SPARE)
        if nbytes > self.limit or nbytes > free + used:
            log.info("packed weights of %d bytes do not fit %s", nbytes, self.folder)
            return False
        while entries and (used + nbytes > self.limit or nbytes > free):
            oldest = entries.pop()
            with suppress(FileNotFoundError):
                self.remove(oldest.name)
            used, free = used - oldest.nbytes, free + oldest.nbytes
        return True

    def _files(self) -> list[Path]:
        return list(self.folder.glob(f"*{_SUFFIX}"))

    def _named(self, name: str) -> Path:
        return self.folder / f"{os.path.basename(name)}{_SUFFIX}"

    def _path(self, key: Mapping[str, Any]) -> Path:
        canonical = json.dumps(key, sort_keys=True).encode()
        return self._named(hashlib.sha256(canonical).hexdigest()[:32])


def _entry(path: Path) -> Entry:
    status = path.lstat()
    name = path.name.removesuffix(_SUFFIX)
    try:
        with PackedFile.open(path) as file:
            return Entry(name, status.st_size, status.st_mtime, file.about)
    except FileNotFoundError:
        raise
    except (OSError, DamagedFileError) as error:
        return Entry(name, status.st_size, status.st_mtime, {}, damage=str(error))
