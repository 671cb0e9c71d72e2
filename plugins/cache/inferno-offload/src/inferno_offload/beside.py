"""Folders of other processes with blocks of the same layout, which are read and never changed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Self

import xxhash
from attrs import define, field

from inferno_offload.folder import DATA, LAYOUT, folder_of
from inferno_offload.index import ENTRY_BYTES, Change, Index, Part, Place
from inferno_offload.parts import PartsFile

LOOK = 0.25
"""Seconds between two looks at what others have written."""


@define
class _News:
    """What another process has written since the last look."""

    begins: bool
    """Whether its log begins anew: what it said before holds no more."""
    changes: list[Change]


@define(eq=False)
class Beside:
    """One such folder. Its process goes on: what it removes may be read until its log is looked at
    again, and is not whole then, as every part has a checksum of its bytes and its key."""

    path: Path
    """Of the layout."""
    layout: str
    parts: PartsFile
    index: Index
    places: dict[Part, Place] = field(factory=dict)
    groups: dict[bytes, int] = field(factory=dict)
    """By key, the groups of these, as a set of bits."""
    _inode: int = 0
    _read: int = 0
    """Bytes of the log that were read."""
    _news: deque[_News] = field(factory=deque)
    _looked: float = 0.0
    _looks: bool = False
    """Whether a thread looks now."""

    @classmethod
    def of(cls, parent: Path, layout: str, sizes: tuple[int, ...], limit: int) -> Self:
        """Return what reads a layout's folder in `parent`, which may not exist yet."""
        path = folder_of(parent, layout)
        index = Index(path / DATA / "index", xxhash.xxh3_64_intdigest(layout.encode()), 0)
        parts = PartsFile(sizes, limit, path / DATA / "parts", -1, index)
        return cls(path, layout, parts, index)

    def look(self, call: Callable[[Callable[[], object]], object] | None = None) -> list[bytes]:
        """Take what was read of the log, and let a thread look again, by `call`; None: look now,
        unless one does. Returns the keys of which something has changed."""
        if call is None:
            if not self._looks:
                self._look()
        elif not self._looks and monotonic() - self._looked > LOOK:
            self._looks = True
            call(self._look)
        changed = dict[bytes, None]()
        while self._news:
            news = self._news.popleft()
            if news.begins:
                changed |= dict.fromkeys(self.groups)
                self.places.clear()
                self.groups.clear()
            for (key, group), place in news.changes:
                changed[key] = None
                if place is None:
                    self.forget((key, group))
                elif group < len(self.parts.sizes):
                    self.places[key, group] = place
                    self.groups[key] = self.groups.get(key, 0) | 1 << group
        return list(changed)

    def forget(self, part: Part) -> None:
        """Forget a part, until it is written anew."""
        if self.places.pop(part, None) is not None:
            key, group = part
            if groups := self.groups[key] & ~(1 << group):
                self.groups[key] = groups
            else:
                del self.groups[key]

    def _look(self) -> None:
        try:
            self._take()
        except OSError:  # the folder does not exist yet, or was removed
            pass
        finally:
            self._looked, self._looks = monotonic(), False

    def _take(self) -> None:
        if (self.path / LAYOUT).read_text(encoding="utf-8") != self.layout:
            return
        descriptor = os.open(self.index.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if begins := status.st_ino != self._inode or status.st_size < self._read:
                self._inode, self._read = status.st_ino, 0
            data = os.pread(descriptor, status.st_size - self._read, self._read)
        finally:
            os.close(descriptor)
        changes = list[Change]()
        count = len(data) // ENTRY_BYTES
        for i, change in enumerate(self.index.entries(data), 1):
            if change is not None:
                changes.append(change)
            elif i == count:  # it is being written
                count -= 1
        self._read += count * ENTRY_BYTES
        if begins or changes:
            self._news.append(_News(begins, changes))


@define(eq=False)
class Others:
    """All of them."""

    folders: list[Beside] = field(factory=list)

    def groups_of(self, key: bytes) -> int:
        """Return the groups whose parts of a block one of them has, as a set of bits."""
        groups = 0
        for each in self.folders:
            groups |= each.groups.get(key, 0)
        return groups

    def find(self, part: Part) -> tuple[Place, Beside] | None:
        """Return where a part is, and in whose file."""
        for each in self.folders:
            if (place := each.places.get(part)) is not None:
                return place, each
        return None

    def drop(self, key: bytes) -> None:
        """Forget a block, until it is written anew."""
        for each in self.folders:
            for group in range(each.groups.get(key, 0).bit_length()):
                each.forget((key, group))

    def look(self, call: Callable[[Callable[[], object]], object] | None = None) -> list[bytes]:
        """Take what was read, and look again, as `Beside.look`. Returns the keys that changed."""
        return [key for each in self.folders for key in each.look(call)]
