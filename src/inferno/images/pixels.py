"""Prepared images and audio on their way to the encoder: files in shared memory, which the engine's
processes map. They are kept for a while, for what comes again. Imports neither torch nor Pillow."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from threading import RLock

from attrs import define, field, frozen

from inferno.contracts import Grid
from inferno.errors import InfernoError
from inferno.request.requests import ImagePart

_SHARED = Path("/dev/shm")
_PREFIX = "inferno.images."
_NAME = re.compile(rf"{re.escape(_PREFIX)}(\d+)")


@frozen(eq=False, weakref_slot=True)
class Picture:
    """A prepared image, or prepared audio. Its file is there while this is referred to."""

    digest: bytes
    grid: Grid
    count: int
    """Positions that it takes."""
    path: str
    medium: str = "image"
    """Or audio."""

    def at(self, start: int, layout: Sequence[int | None] | None = None) -> Iterator[ImagePart]:
        """Return its parts of a prompt: one, or one for each run of positions of its `layout`
        (`contracts.ImageLayoutConfig`)."""
        if layout is None:
            yield ImagePart(
                start, self.count, self.digest, self.grid, self.path, medium=self.medium
            )
            return
        first = 0
        for is_text, run in groupby(layout, lambda token: token is not None):
            count = sum(1 for _ in run)
            if not is_text:
                yield ImagePart(start, count, self.digest, self.grid, self.path, first, self.medium)
                first += count
            start += count


@frozen
class Prepared:
    """What is known of an image once its pixels are in a file, or of audio with its frames."""

    digest: bytes
    grid: Grid
    count: int
    nbytes: int
    medium: str = "image"


@define(eq=False)
class PixelFiles:
    """The files of one process, up to so many bytes of those that nobody refers to."""

    max_bytes: int
    folder: Path = field(init=False)
    _held: OrderedDict[bytes, Prepared] = field(init=False, factory=OrderedDict)
    """By digest, used last at the end."""
    _users: dict[bytes, int] = field(init=False, factory=dict)
    _idle_bytes: int = field(init=False, default=0)
    _lock: RLock = field(init=False, factory=RLock)
    """Entered again where collecting garbage ends a picture meanwhile."""
    _removed: weakref.finalize[[Path], PixelFiles] = field(init=False)

    def __attrs_post_init__(self) -> None:
        remove_stale()
        made_folder(root := folder_of(os.getpid()))
        self.folder = Path(tempfile.mkdtemp(dir=root, prefix=""))
        self._removed = weakref.finalize(self, _remove, self.folder)

    def close(self) -> None:
        """Remove all files."""
        self._removed()

    def path_of(self, digest: bytes) -> Path:
        return self.folder / digest.hex()

    def find(self, digest: bytes) -> Picture | None:
        """Return an image whose file is still here."""
        with self._lock:
            known = self._held.get(digest)
            return None if known is None else self._picture(known)

    def adopt(self, prepared: Prepared) -> Picture | None:
        """Return an image whose file was written at `path_of` its digest; None if it has been
        removed since, because another one made room."""
        with self._lock:
            if prepared.digest not in self._held:
                if not self.path_of(prepared.digest).exists():
                    return None
                self._users[prepared.digest] = 0
                self._held[prepared.digest] = prepared
                self._idle_bytes += prepared.nbytes
            return self._picture(prepared)

    def _picture(self, known: Prepared) -> Picture:
        digest = known.digest
        self._held.move_to_end(digest)
        if not self._users[digest]:
            self._idle_bytes -= known.nbytes
        self._users[digest] += 1
        path = str(self.path_of(digest))
        picture = Picture(digest, known.grid, known.count, path, known.medium)
        weakref.finalize(picture, self._release, digest).atexit = False
        return picture

    def _release(self, digest: bytes) -> None:
        with self._lock:
            self._users[digest] -= 1
            if self._users[digest]:
                return
            self._idle_bytes += self._held[digest].nbytes
            for old in list(self._held):
                if self._idle_bytes <= self.max_bytes:
                    break
                if not self._users[old]:
                    self._idle_bytes -= self._held.pop(old).nbytes
                    del self._users[old]
                    self.path_of(old).unlink(missing_ok=True)


def write(path: Path, values: bytes | memoryview) -> None:
    """Write a file that is whole as soon as it has its name. Raises InfernoError without room."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(values)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InfernoError(
            f"there is no room for an image's pixels in {path.parent}: {error.strerror}",
            "Make room there; containers have 64 MiB of shared memory unless told otherwise.",
        ) from error


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # it has others
        folder.parent.rmdir()


def folder_of(pid: int) -> Path:
    """Return the folder of a process's folders: in shared memory, where there is any."""
    root = _SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir())
    return root / f"{_PREFIX}{pid}"


def made_folder(folder: Path) -> None:
    """Make a folder that nobody else reads. Raises InfernoError if it is someone else's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise InfernoError(
            f"{folder} is another user's, or others may read it", "Remove it, and start again."
        )


def remove_stale() -> None:
    """Remove the files of processes that were killed."""
    for folder in folder_of(os.getpid()).parent.glob(f"{_PREFIX}*"):
        if (named := _NAME.fullmatch(folder.name)) is not None and not _runs(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)  # other users' stay


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # someone else's
        return True
    return True
