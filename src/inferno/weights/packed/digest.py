"""The content hash of a model's files, remembered while the files stay the same.

Hashing takes a second per gigabyte. A hash is remembered with the device, inode, size and the times
of the last change: a file that is replaced, written to or touched is hashed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from inferno.weights.packed.folder import write_whole

_SETTLED_NS = 2_000_000_000
"""A file that changed less than this before it was hashed is not remembered: it could change again
without a new time."""
_CHUNK = 1 << 22


def remembered(files: Iterable[Path], folder: Path) -> list[str] | None:
    """Return the SHA-256 of each file, or None unless all are remembered in `folder` and
    unchanged."""
    digests = [_remembered(file, folder) for file in files]
    return [sha256 for sha256 in digests if sha256 is not None] if None not in digests else None


def _remembered(file: Path, folder: Path) -> str | None:
    try:
        memo = json.loads((folder / _memo_name(file)).read_bytes())
        return str(memo["sha256"]) if memo["state"] == state(file) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def computed(
    files: Iterable[Path],
    folder: Path,
    states: Mapping[Path, list[int]],
    go_on: Iterator[None],
) -> list[str] | None:
    """Hash the files and remember the results. `states` is what `state` returned when their tensors
    were opened; None if a file has changed since. Takes one item of `go_on` per chunk, which may
    raise to end it. Raises OSError if one cannot be read."""
    digests = []
    for file in files:
        known = _remembered(file, folder)
        sha256 = known or _sha256(file, go_on)
        if states.get(file) != state(file):
            return None
        digests.append(sha256)
        if known is None and time.time_ns() - max(states[file][-2:]) > _SETTLED_NS:
            memo = {"file": str(file), "state": states[file], "sha256": sha256}
            with suppress(OSError):  # no room, or not writable: it is hashed again next time
                write_whole(folder / _memo_name(file), json.dumps(memo).encode())
    return digests


def state(file: Path) -> list[int]:
    """Return what changes when a file does: device, inode, size and the times of the last
    changes."""
    status = file.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _sha256(file: Path, go_on: Iterator[None]) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            next(go_on)
            digest.update(buffer[:count])
    return digest.hexdigest()


def _memo_name(file: Path) -> str:
    return f"{hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:32]}.memo"
