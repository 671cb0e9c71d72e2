"""Blocks on disk: a file for each part of a block, in a folder for each layout."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash
from attrs import define, field

from inferno.contracts import StoredLayout
from inferno.errors import OptionError

Part = tuple[bytes, int]
"""A block's content key, and a cache group."""
_TRAILER = struct.Struct("<8sQQ")
"""Magic, bytes of the body, checksum. After the body, whose pages are whole ones so: as a header it
made a write take twice as long."""
_MAGIC = b"inferno2"
_AT_ONCE = 128 << 10
"""Bytes of a write: with all of a part at once, Linux takes twice as long."""
_LAYOUT, _LOCK = "layout.json", "lock"
_PREFIX = "blocks-"
_LONGEST = 16 << 20
"""Letters of a layout that are read."""


@define(eq=False)
class Folder:
    """The files of one layout. Only one process has it open."""

    path: Path
    layout: str
    sizes: tuple[int, ...]
    """Bytes of a part, by group."""
    _lock: int = field(default=-1)

    @classmethod
    def open(cls, parent: Path, layout: str, sizes: tuple[int, ...], limit: int) -> Folder:
        """Open the layout's folder in `parent`, and remove those of other layouts that were used
        longest ago, until they take at most half of `limit`. Raises OptionError."""
        digest = hashlib.sha256(layout.encode()).hexdigest()[:16]
        path = parent / f"{_PREFIX}{digest}"
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _locked(path)
            if lock is None:
                raise OptionError(
                    f"the blocks in {path} are in use by another process",
                    "Give each server a folder of its own: --kv-store DIR.",
                )
            _agree(path / _LAYOUT, layout)
            _make_room(parent, path, limit // 2)
        except OSError as error:
            raise OptionError(
                f"--kv-store {parent}: {error.strerror or error}",
                "Name a folder that can be written.",
            ) from error
        return cls(path, layout, sizes, lock)

    def parts(self) -> Iterator[tuple[Part, int]]:
        """Return the parts there are and the bytes of their files, used longest ago first. Removes
        what a crash has left behind."""
        found = list[tuple[int, Part, int]]()
        for sub in self.path.iterdir():
            for entry in os.scandir(sub) if sub.is_dir() else ():
                try:
                    key, group = entry.name.split(".")
                    part = bytes.fromhex(key), int(group)
                    status = entry.stat()
                except (ValueError, OSError):
                    _remove(Path(entry.path))
                    continue
                if len(part[0]) == 16 and part[1] < len(self.sizes):
                    found.append((status.st_mtime_ns, part, status.st_size))
        found.sort()
        yield from ((part, nbytes) for _, part, nbytes in found)

    def write(self, part: Part, body: memoryview) -> int:
        """Write a part's file, whole or not at all. Returns its bytes. Raises OSError."""
        path = self._file(part)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        draft = path.with_name(f"{path.name}.draft")
        trailer = _TRAILER.pack(_MAGIC, len(body), self._checksum(part, body))
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while len(body):
                body = body[file.write(body[:_AT_ONCE]) :]
            file.write(trailer)
        os.replace(draft, path)
        return path.stat().st_size

    def read(self, part: Part, body: memoryview) -> bool:
        """Read a part's file into `body`. Returns False if it is missing, damaged, or another's."""
        path, trailer = self._file(part), b""
        try:
            with path.open("rb", buffering=0) as file:
                count = 0
                while count < len(body) and (read := file.readinto(body[count:])):
                    count += read
                trailer = file.read(_TRAILER.size + 1)
        except OSError:
            return False
        if count < len(body) or trailer != _TRAILER.pack(
            _MAGIC, len(body), self._checksum(part, body)
        ):
            return False
        os.utime(path)
        return True

    def remove(self, part: Part) -> None:
        _remove(self._file(part))

    def close(self) -> None:
        os.close(self._lock)

    def _file(self, part: Part) -> Path:
        name = part[0].hex()
        return self.path / name[:2] / f"{name}.{part[1]}"

    def _checksum(self, part: Part, body: memoryview) -> int:
        """Of the body and of what it is: a file under another's name is damaged too."""
        digest = xxhash.xxh3_64(self.layout.encode())
        digest.update(part[0] + part[1].to_bytes(4, "little"))
        digest.update(body)
        return digest.intdigest()


def _locked(path: Path) -> int | None:
    """Lock a layout's folder, until the descriptor is closed. None if another process has it."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _agree(file: Path, layout: str) -> None:
    """Write the layout of a new folder. Raises OptionError if there is another one."""
    try:
        stored = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        draft = file.with_name(f"{file.name}.draft")
        draft.write_text(layout, encoding="utf-8")
        os.replace(draft, file)
        return
    if stored != layout:
        theirs, ours = _differences(stored, layout)
        raise OptionError(
            f"the blocks in {file.parent} have the layout {theirs}; this engine's is {ours}",
            "Remove that folder, or name another one: --kv-store DIR.",
        )
    os.utime(file)


def _differences(stored: str, layout: str) -> tuple[str, str]:
    """Return what differs of two layouts, shortened."""
    try:
        theirs, ours = json.loads(stored), json.loads(layout)
    except ValueError:
        return repr(stored[:80]), repr(layout[:80])
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return repr(stored[:80]), repr(layout[:80])
    names = sorted(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
    return _said(theirs, names), _said(ours, names)


def _said(layout: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {str(layout.get(name))[:60]}" for name in names)


def survey(parent: Path) -> list[StoredLayout]:
    """Return the layouts that have a folder in `parent`. Raises OptionError if it cannot be
    read."""
    try:
        return [_stored(path) for path in _folders(parent)]
    except OSError as error:
        raise OptionError(
            f"--kv-store {parent}: {error.strerror or error}",
            "Name a folder of your own, or one that does not exist yet.",
        ) from error


def _folders(parent: Path) -> list[Path]:
    if not parent.exists():
        return []
    with os.scandir(parent) as entries:
        return [
            Path(each.path)
            for each in entries
            if each.name.startswith(_PREFIX) and each.is_dir(follow_symlinks=False)
        ]


def _stored(path: Path) -> StoredLayout:
    """Read a layout's folder, whose files may come and go meanwhile."""
    nbytes, used, layout = 0, 0.0, ""
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                status = os.lstat(os.path.join(folder, name))  # there may be millions
                nbytes += status.st_size
                if name != _LOCK:
                    used = max(used, status.st_mtime)
    with suppress(OSError, ValueError), (path / _LAYOUT).open(encoding="utf-8") as file:
        layout = file.read(_LONGEST)
    return StoredLayout(path=path, layout=layout, nbytes=nbytes, used=used)


def _make_room(parent: Path, own: Path, limit: int) -> None:
    """Remove other layouts' folders that no process has open, used longest ago first, until the
    rest takes at most `limit` bytes."""
    others = sorted(
        (_stored(path) for path in _folders(parent) if path != own), key=lambda each: each.used
    )
    total = sum(each.nbytes for each in others)
    for each in others:
        if total <= limit:
            return
        if (lock := _locked(each.path)) is not None:
            shutil.rmtree(each.path, ignore_errors=True)
            os.close(lock)
            total -= each.nbytes


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
