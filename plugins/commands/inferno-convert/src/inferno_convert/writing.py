"""Writes an output piece by piece, so that an interrupted run can continue.

The journal has a line for the key of the run and one for each finished piece, with the SHA-256 of
its tensors. A line is written after the bytes are on disk. A run with the same key hashes what the
journal lists, and computes the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.contracts import Output, Piece
from inferno.errors import PluginError, WriteError
from inferno_convert.place import Place, explained

if TYPE_CHECKING:
    from torch import Tensor

JOURNAL = "journal"
SYNC_BYTES, SYNC_SECONDS = 256 << 20, 10.0
"""Bytes or seconds after which finished pieces are synced to disk: an interrupted run repeats at
most that."""
_CHUNK = 1 << 24

Progress = Callable[[int, int, str], None]
"""progress(done, total, what): bytes so far, and the tensor or the step that is next."""


@define
class Files:
    """The output's files, while they are written."""

    folder: Path
    output: Output
    _open: dict[str, int] = field(factory=dict)
    """Descriptors by file name."""
    _places: dict[str, tuple[str, int, int]] = field(factory=dict)
    """Tensor -> file, offset, bytes."""

    def open(self, on_exit: ExitStack) -> None:
        """Make the files in their full size, and write what comes before the tensors."""
        for file in self.output.files:
            path = self.folder / file.name
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            on_exit.callback(os.close, descriptor)
            self._open[file.name] = descriptor
            os.ftruncate(descriptor, file.nbytes)
            if hasattr(os, "posix_fallocate") and file.nbytes:  # fails now if the disk is full
                os.posix_fallocate(descriptor, 0, file.nbytes)
            _write(descriptor, 0, memoryview(file.start))
            self._places |= {name: (file.name, *place) for name, place in file.places.items()}

    def nbytes(self, name: str) -> int:
        return self._places[name][2]

    def write(self, name: str, start: int, data: memoryview) -> None:
        file, offset, nbytes = self._places[name]
        if start + data.nbytes > nbytes:
            raise PluginError(
                f"a writer made more than the {nbytes} bytes of {name} that it announced",
                "Report this to the plugin's authors.",
            )
        _write(self._open[file], offset + start, data)

    def read(self, name: str) -> memoryview:
        """Return a tensor's bytes."""
        file, offset, nbytes = self._places[name]
        return memoryview(b"".join(_chunks(self._open[file], offset, nbytes)))

    def sha256(self, name: str) -> str:
        file, offset, nbytes = self._places[name]
        return _sha256(self._open[file], offset, nbytes)

    def whole(self) -> dict[str, str]:
        """Return the SHA-256 of each file."""
        return {
            file.name: _sha256(self._open[file.name], 0, file.nbytes) for file in self.output.files
        }

    def sync(self) -> None:
        for descriptor in self._open.values():
            os.fsync(descriptor)


@define
class Journal:
    """Which pieces are on disk."""

    path: Path
    key: Mapping[str, Any]
    finished: dict[int, dict[str, str]] = field(factory=dict)
    """Piece -> SHA-256 of its tensors."""

    @classmethod
    def open(cls, path: Path, key: Mapping[str, Any]) -> Journal:
        """Read the journal of an earlier run with this key, or begin a new one."""
        canonical = json.loads(json.dumps(key))
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines and json.loads(lines[0]) == canonical:
                return cls(path, canonical, dict(_finished(lines[1:])))
        except (OSError, ValueError):
            pass
        path.write_text(json.dumps(canonical) + "\n", encoding="utf-8")
        return cls(path, canonical)

    def add(self, pieces: Mapping[int, dict[str, str]]) -> None:
        """Note pieces whose bytes are on disk."""
        with self.path.open("a", encoding="utf-8") as stream:
            for number, tensors in pieces.items():
                stream.write(json.dumps([number, tensors]) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.finished |= pieces


def write(
    output: Output, place: Place, key: Mapping[str, Any], progress: Progress
) -> dict[str, str]:
    """Write the output's tensors into the place's folder, continuing what an earlier run with an
    equal key left there. Returns the SHA-256 of each file. Raises WriteError."""
    with ExitStack() as on_exit, explained(place.path):
        journal = Journal.open(place.part / JOURNAL, key)
        files = Files(place.part, output)
        if not journal.finished:
            for file in output.files:  # another run's may be larger
                (place.part / file.name).unlink(missing_ok=True)
        on_disk = sum(_allocated(place.part / file.name) for file in output.files)
        try:
            place.check_room(max(0, sum(file.nbytes for file in output.files) - on_disk))
        except WriteError:
            if not journal.finished:  # nothing to continue with
                shutil.rmtree(place.part, ignore_errors=True)
            raise
        files.open(on_exit)
        _write_pieces(output, files, journal, progress)
        progress(1, 1, "checksums")
        return files.whole()


def _write_pieces(output: Output, files: Files, journal: Journal, progress: Progress) -> None:
    total = sum(files.nbytes(name) for piece in output.pieces for name in piece.tensors)
    done, synced, since = 0, 0, time.monotonic()
    fresh: dict[int, dict[str, str]] = {}
    try:
        for number, piece in enumerate(output.pieces):
            progress(done, total, piece.tensors[0] if piece.tensors else "")
            if _is_written(piece, files, journal.finished.get(number)):
                if piece.done is not None:
                    piece.done(files.read)
            else:
                fresh[number] = _write_piece(piece, files)
            done += sum(files.nbytes(name) for name in piece.tensors)
            if done - synced >= SYNC_BYTES or time.monotonic() - since >= SYNC_SECONDS:
                files.sync()
                journal.add(fresh)
                fresh, synced, since = {}, done, time.monotonic()
    except BaseException:
        with suppress(OSError):
            files.sync()
            journal.add(fresh)
        raise
    files.sync()
    journal.add(fresh)
    progress(total, total, "")


def _is_written(piece: Piece, files: Files, found: Mapping[str, str] | None) -> bool:
    return (
        found is not None
        and set(found) == set(piece.tensors)
        and all(files.sha256(name) == sha256 for name, sha256 in found.items())
    )


def _write_piece(piece: Piece, files: Files) -> dict[str, str]:
    starts = dict.fromkeys(piece.tensors, 0)
    digests = {name: hashlib.sha256() for name in piece.tensors}
    for name, tensor in piece.make():
        data = bytes_of(tensor)
        files.write(name, starts[name], data)
        digests[name].update(data)
        starts[name] += data.nbytes
    for name, end in starts.items():
        if end != files.nbytes(name):
            raise PluginError(
                f"a writer made {end} of the {files.nbytes(name)} bytes of {name}",
                "Report this to the plugin's authors.",
            )
    return {name: digest.hexdigest() for name, digest in digests.items()}


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, of any dtype."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: Any = flat.view(torch.uint8).numpy()
    return memoryview(data)


def _finished(lines: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for line in lines:
        try:
            number, tensors = json.loads(line)
        except ValueError:  # the line that was being written
            return
        yield int(number), {str(name): str(sha256) for name, sha256 in tensors.items()}


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _write(descriptor: int, offset: int, data: memoryview) -> None:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(descriptor, data[done : done + _CHUNK], offset + done)


def _sha256(descriptor: int, offset: int, nbytes: int) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(descriptor, offset, nbytes):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(descriptor: int, offset: int, nbytes: int) -> Iterator[bytes]:
    for start in range(0, nbytes, _CHUNK):
        yield os.pread(descriptor, min(_CHUNK, nbytes - start), offset + start)
