"""Writes a wheel: files in a ZIP archive, and a RECORD with the hash of each
(https://packaging.python.org/specifications/binary-distribution-format). The same content gives the
same bytes."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from attrs import field, frozen

CHUNK = 1 << 20
"""Bytes that are copied at once."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""The first that a ZIP archive can hold."""
_WHEEL = """Wheel-Version: 1.0
Generator: inferno
Root-Is-Purelib: true
Tag: py3-none-any
"""


@frozen
class Wheel:
    """A wheel that is being written; made by `writing`."""

    folder: str
    """Of the metadata: `NAME-VERSION.dist-info`."""
    _archive: zipfile.ZipFile
    _record: list[str] = field(factory=list)

    @classmethod
    @contextmanager
    def writing(cls, path: Path, name: str, version: str) -> Iterator[Self]:
        """Context in which files are added, METADATA among them. The wheel has its name once it is
        complete."""
        part = path.with_name(f".{path.name}.part")
        try:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
                wheel = cls(f"{name}-{version}.dist-info", archive)
                yield wheel
                wheel.add(f"{wheel.folder}/WHEEL", _WHEEL)
                record = f"{wheel.folder}/RECORD"
                lines = "".join(f"{line}\n" for line in [*wheel._record, f"{record},,"])
                archive.writestr(_entry(record), lines)
            os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()

    def add(self, path: str, content: str) -> None:
        """Write a text."""
        data = content.encode()
        self._archive.writestr(_entry(path), data)
        self._list(path, hashlib.sha256(data), len(data))

    def copy(self, path: str, file: Path, wrote: Callable[[int], None]) -> str:
        """Write a file, and return its SHA-256 in hexadecimal. `wrote` is told each number of bytes
        that was written."""
        digest, size = hashlib.sha256(), file.stat().st_size
        entry = _entry(path)
        entry.file_size = size  # by which the archive decides whether its sizes have 64 bits
        with file.open("rb") as source, self._archive.open(entry, "w") as target:
            written = 0
            for chunk in _chunks(source):
                digest.update(chunk)
                target.write(chunk)
                written += len(chunk)
                wrote(len(chunk))
        self._list(path, digest, written)
        return digest.hexdigest()

    def _list(self, path: str, digest: hashlib._Hash, size: int) -> None:
        encoded = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
        quoted = '"' + path.replace('"', '""') + '"' if set(path) & set(',"') else path
        self._record.append(f"{quoted},sha256={encoded},{size}")


def _entry(path: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(str(PurePosixPath(path)), _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    return entry


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk
