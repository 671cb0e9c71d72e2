"""Reads and writes of parts in threads, and what they report."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, perf_counter

from attrs import define, field

from inferno_offload.folder import Folder, Part
from inferno_offload.slots import Buffer

MOST_QUEUED = 1 << 30
"""Bytes that wait to be written. Where a disk cannot follow, further blocks are not kept on it."""


PAUSE = 0.05
"""Seconds between two signals while more is on its way: who waits for a hundred files looks at a
few of them at once."""


@define(eq=False)
class Written:
    part: Part
    buffer: Buffer
    nbytes: int
    """Of the file; 0 if it could not be written."""


@define(eq=False)
class Read:
    part: Part
    buffer: Buffer
    whole: bool
    """Whether the buffer has its bytes: else they are lost."""
    seconds: float


@define(eq=False)
class Files:
    """Hands work to threads: one writes and removes, in order; others read. `descriptor` is
    readable once `take` has all that was asked for, or something for a while."""

    folder: Folder
    queued: int = 0
    """Bytes that wait to be written."""
    _readers: ThreadPoolExecutor = field(init=False)
    _writer: ThreadPoolExecutor = field(init=False)
    _reports: deque[Written | Read] = field(factory=deque, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _left: int = 0
    """Reads and writes that were not reported yet."""
    _told: float = 0.0
    """When the last signal was (`monotonic`)."""
    descriptor: int = field(init=False)
    _signal: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._readers = ThreadPoolExecutor(2, "inferno-offload-read")
        self._writer = ThreadPoolExecutor(1, "inferno-offload-write")
        self.descriptor, self._signal = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._signal, False)

    def write(self, part: Part, data: Buffer) -> bool:
        """Write a part. Returns False if too much waits already."""
        if self.queued + data.nbytes > MOST_QUEUED:
            return False
        self.queued += data.nbytes
        self._begin()
        self._writer.submit(self._write, part, data)
        return True

    def _write(self, part: Part, buffer: Buffer) -> None:
        try:
            nbytes = self.folder.write(part, buffer.data.numpy().data)
        except OSError:
            nbytes = 0
        self._report(Written(part, buffer, nbytes))

    def remove(self, part: Part) -> None:
        self._writer.submit(self.folder.remove, part)

    def read(self, part: Part, buffer: Buffer) -> None:
        """Read a part into a buffer."""
        self._begin()
        self._readers.submit(self._read, part, buffer)

    def _read(self, part: Part, buffer: Buffer) -> None:
        started = perf_counter()
        whole = self.folder.read(part, buffer.data.numpy().data)
        self._report(Read(part, buffer, whole, perf_counter() - started))

    def _begin(self) -> None:
        with self._lock:
            self._left += 1

    def _report(self, report: Written | Read) -> None:
        with self._lock:
            self._reports.append(report)
            self._left -= 1
            now = monotonic()
            if not self._left or now - self._told > PAUSE:
                self._told = now
                self.signal()

    def signal(self) -> None:
        """Make the descriptor readable."""
        try:
            os.write(self._signal, b"\0")
        except BlockingIOError:  # it is readable
            pass

    def take(self) -> list[Written | Read]:
        """Return what has been done since the last call."""
        with self._lock:
            try:
                while os.read(self.descriptor, 4096):
                    pass
            except BlockingIOError:
                pass
            reports = list(self._reports)
            self._reports.clear()
            return reports

    def finish(self) -> None:
        """Wait for what is being written; what is still to be read is not."""
        self._readers.shutdown(cancel_futures=True)
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write and remove what was asked for, and end."""
        self._readers.shutdown(cancel_futures=True)
        self._writer.shutdown()
        os.close(self.descriptor)
        os.close(self._signal)
        self.folder.close()
