"""Where a conversion is written: a folder beside the result, which takes the result's name only
when everything is in it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from inferno.errors import OptionError, WriteError
from inferno.host import format_bytes

MANIFEST = "manifest.json"
"""The description of the result: in its folder, or beside a file, after the file's name."""
SPARE = 16 << 20
"""Bytes that are to stay free on the disk."""


@frozen
class Place:
    """The result's path, and the folder in which it is written until it is complete."""

    path: Path
    is_folder: bool

    @property
    def part(self) -> Path:
        return self.path.with_name(f".{self.path.name}.part")

    @property
    def manifest(self) -> Path:
        if self.is_folder:
            return self.path / MANIFEST
        return self.path.with_name(f"{self.path.name}.{MANIFEST}")

    def check(self, names: Sequence[str], *, force: bool) -> None:
        """Raise OptionError if the result would replace files and `force` is not given, or would
        replace a folder that no conversion has written."""
        if not self.is_folder:
            wrong = next((p for p in self._targets(names) if p.exists()), None)
            if wrong is not None and (not force or wrong.is_dir()):
                raise OptionError(f"{wrong} exists already", _other("--force replaces a file."))
            return
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        if not force:
            raise OptionError(f"{self.path} exists already", _other("--force replaces it."))
        if not self.manifest.is_file():
            raise OptionError(
                f"{self.path} was not written by a conversion, so --force does not replace it",
                "Remove it yourself, or give another path.",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which this process alone writes here. Makes the folder. Raises WriteError."""
        with explained(self.path):
            self.part.mkdir(exist_ok=True)
            descriptor = os.open(self.part, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WriteError(
                    f"another process is writing {self.path}", "Wait for it, or end it."
                ) from error
            yield
        finally:
            os.close(descriptor)

    def check_room(self, nbytes: int) -> None:
        """Raise WriteError unless the disk has room for `nbytes` more."""
        free = shutil.disk_usage(self.part).free
        if nbytes + SPARE > free:
            raise WriteError(
                f"{self.path} needs {format_bytes(nbytes)} and {format_bytes(SPARE)} to spare, and "
                f"{format_bytes(free)} are free on its disk",
                "Free some space, or give a path on another disk.",
            )

    def finish(self, names: Sequence[str], texts: Mapping[str, bytes]) -> None:
        """Give the result its name. Raises WriteError."""
        with explained(self.path):
            for name, content in texts.items():
                (self.part / name).parent.mkdir(exist_ok=True)
                write_synced(self.part / name, content)
            outputs = {*names, *[name.partition("/")[0] for name in texts]}
            for file in self.part.iterdir():
                if file.name not in outputs:
                    file.unlink()
            if self.is_folder:
                self._finish_folder()
            else:
                # The first file last: it is the one that programs open.
                for name in reversed(names):
                    os.replace(self.part / name, self.path.with_name(name))
                for name in texts:
                    os.replace(self.part / name, self.path.with_name(name))
                self.part.rmdir()
            _sync_folder(self.path.parent)

    def _finish_folder(self) -> None:
        old = self.path.with_name(f".{self.path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        _sync_folder(self.part)
        if self.path.exists():
            os.rename(self.path, old)
        os.rename(self.part, self.path)
        shutil.rmtree(old, ignore_errors=True)

    def _targets(self, names: Sequence[str]) -> list[Path]:
        return [self.path.with_name(name) for name in names]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into a WriteError that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "Give a path in a folder that you can write to."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some space and run the same command again: what is written stays."
        raise WriteError(f"{path} cannot be written: {reason}", remedy) from error


def write_synced(path: Path, content: bytes) -> None:
    """Write a small file, and wait until it is on disk."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _other(force: str) -> str:
    return f"Give another path with -o; {force}"
