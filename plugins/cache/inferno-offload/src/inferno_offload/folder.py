"""Folders of blocks on disk, one for each layout."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

from attrs import define, field

from inferno.contracts import StoredLayout
from inferno.errors import OptionError
from inferno_offload.extents import Extents
from inferno_offload.index import Part, Place
from inferno_offload.parts import PartsFile

LAYOUT, _LOCK, DATA = "layout.json", "lock", "data"
_PREFIX = "blocks-"
_LONGEST = 16 << 20
"""Letters of a layout that are read."""


@define(eq=False)
class Folder:
    """The files of one layout. Only one process has it open."""

    path: Path
    parts: PartsFile
    places: dict[Part, Place]
    """Where the parts are, used longest ago first."""
    free: Extents
    _lock: int = field(default=-1)

    @classmethod
    def open(
        cls,
        parent: Path,
        layout: str,
        sizes: tuple[int, ...],
        limit: int,
        former: Sequence[Path] = (),
    ) -> Folder:
        """Open the layout's folder in `parent`. Those of other layouts, and all in the `former`
        folders, may take half of `limit`: the ones used longest ago are removed until they do, on
        a full disk all of them. Raises OptionError."""
        path, parents = folder_of(parent, layout), (parent, *former)
        try:
            try:
                opened = cls._open(path, layout, sizes, limit, parents)
            except OSError as error:
                if error.errno != ENOSPC or not _make_room(parents, path, 0):
                    raise
                opened = cls._open(path, layout, sizes, limit, parents)
        except OSError as error:
            raise OptionError(
                f"--kv-store {parent}: {error.strerror or error}",
                "Name a folder that can be written, on a disk with room.",
            ) from error
        _remove_empty(former)
        return opened

    @classmethod
    def _open(
        cls, path: Path, layout: str, sizes: tuple[int, ...], limit: int, parents: Sequence[Path]
    ) -> Folder:
        """Raises OSError, OptionError."""
        with ExitStack() as undo:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _locked(path)
            if lock is None:
                raise OptionError(
                    f"the blocks in {path} are in use by another process",
                    "Give each server a folder of its own: --kv-store DIR.",
                )
            undo.callback(os.close, lock)
            _agree(path / LAYOUT, layout)
            _make_room(parents, path, limit // 2)
            _remove_older_format(path)
            parts = PartsFile.open(path / DATA, layout, sizes, limit)
            undo.callback(parts.close)
            places, free = parts.recover()
            undo.pop_all()
        return cls(path, parts, places, free, lock)

    def close(self) -> None:
        """Keep the order of `places`, and close the files."""
        with suppress(OSError):  # the index is as it was appended to
            self.parts.write_index(self.places, self.free.end)
        self.parts.close()
        os.close(self._lock)


def folder_of(parent: Path, layout: str) -> Path:
    """Return a layout's folder in `parent`."""
    return parent / f"{_PREFIX}{hashlib.sha256(layout.encode()).hexdigest()[:16]}"


def _locked(path: Path) -> int | None:
    """Lock a layout's folder, until the descriptor is closed. None if another process has it."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_older_format(path: Path) -> None:
    """Remove blocks that had a file each, in folders by the first byte of their key."""
    for folder in path.glob("[0-9a-f][0-9a-f]"):
        shutil.rmtree(folder, ignore_errors=True)


def _agree(file: Path, layout: str) -> None:
    """Write the layout of a new folder, or of one that has lost it. Raises OptionError if there is
    another one."""
    stored = _layout_in(file)
    if stored is None:
        draft = file.with_name(f"{file.name}.draft")
        draft.write_text(layout, encoding="utf-8")
        os.replace(draft, file)
        return
    if stored != (engine := json.loads(layout)):
        theirs, ours = _differences(stored, engine)
        raise OptionError(
            f"the blocks in {file.parent} have the layout {theirs}; this engine's is {ours}",
            "Remove that folder, or name another one: --kv-store DIR.",
        )
    os.utime(file)


def _layout_in(file: Path) -> dict[str, Any] | None:
    """Return a folder's layout. None: it has none yet, or a crash of the system has damaged it.
    Parts of another layout do not match their checksums."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return stored if isinstance(stored, dict) else None


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, str]:
    """Return what differs of two layouts, shortened."""
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
    with suppress(OSError, ValueError), (path / LAYOUT).open(encoding="utf-8") as file:
        layout = file.read(_LONGEST)
    return StoredLayout(path=path, layout=layout, nbytes=nbytes, used=used)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in reversed(folders):  # ranks' before their engine's
        with suppress(OSError):  # it has something, or is the one that all share
            folder.rmdir()


def _make_room(parents: Sequence[Path], own: Path, limit: int) -> bool:
    """Remove other folders of layouts that no process has open, used longest ago first, until the
    rest takes at most `limit` bytes. Returns whether any was removed."""
    paths = (path for parent in parents for path in _folders(parent) if path != own)
    others = sorted(map(_stored, paths), key=lambda each: each.used)
    total, removed = sum(each.nbytes for each in others), False
    for each in others:
        if total <= limit:
            break
        if (lock := _locked(each.path)) is not None:
            shutil.rmtree(each.path, ignore_errors=True)
            os.close(lock)
            total, removed = total - each.nbytes, True
    return removed
