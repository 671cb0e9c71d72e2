"""Reads and writes of parts in threads, and what they report."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, perf_counter

from attrs import define, field
from torch import Tensor

from inferno_offload.index import Part, Place
from inferno_offload.pace import Pace, has_spare
from inferno_offload.parts import PartsFile, Read, Write
from inferno_offload.slots import Slots

MOST_QUEUED = 1 << 30
"""Bytes that wait to be written. Where a disk cannot follow, further blocks are not kept on it."""
BATCH = 16 << 20
"""Bytes that are written before the index has them."""
READERS = 2
LEAST_SHARE, MOST_SHARE = 4 << 20, 32 << 20
"""Bytes of a fetch that are worth a second one, and that one reads before it turns to another
fetch."""
NICE = 10
"""The priority of threads that read and write."""
PAUSE = 0.05
"""Seconds between two signals while more is on its way: who waits for a hundred parts looks at a
few of them at once."""


def give_way() -> None:
    """Let this thread run when others do not need its core: those of a step wait for each other.
    Only on Linux do threads have priorities of their own."""
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


@define(eq=False)
class Written:
    write: Write
    place: Place | None
    """None: it could not be written."""


@define(eq=False)
class Fetched:
    read: Read
    whole: bool
    """Whether the buffer has its bytes: else they are lost."""
    seconds: float


@define(eq=False)
class Files:
    """Hands work to threads: one writes and removes, in order; others read. `descriptor` is
    readable once `take` has all that was asked for, or something for a while."""

    parts: PartsFile
    queued: int = 0
    """Bytes that wait to be written."""
    pace: Pace = field(factory=Pace)
    """The pace of all threads here."""
    _work: deque[Write | Part] = field(factory=deque, init=False)
    """Parts to write, and those that were removed."""
    _readers: ThreadPoolExecutor = field(init=False)
    _writer: ThreadPoolExecutor = field(init=False)
    _reports: deque[Written | Fetched] = field(factory=deque, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _left: int = 0
    """Reads and writes that were not reported yet."""
    _told: float = 0.0
    """When the last signal was (`monotonic`)."""
    descriptor: int = field(init=False)
    _signal: int = field(init=False)
    _signalled: bool = False
    """Whether the descriptor is readable. To ask the system in each step would release the GIL."""

    def __attrs_post_init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, "inferno-offload-read", give_way)
        self._writer = ThreadPoolExecutor(1, "inferno-offload-write", give_way)
        self.descriptor, self._signal = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._signal, False)

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        """Take the cache's tensors: if they are on the CPU, and no cores are left for the threads
        here besides those of a step, the threads keep a pace."""
        self.pace.enabled = any(
            piece.device.type == "cpu" for pieces in groups for piece in pieces
        ) and not has_spare(READERS + 1)

    def accepts(self, nbytes: int) -> bool:
        """Whether so many bytes more may wait to be written."""
        return self.queued + nbytes <= MOST_QUEUED

    def write(self, write: Write) -> None:
        """Write a part, after all that was asked for before."""
        self.queued += write.buffer.nbytes
        with self._lock:
            self._left += 1
        self._work.append(write)
        self._writer.submit(self._write)

    def remove(self, part: Part) -> None:
        """Note that a part's extent may be another's from now on."""
        self._work.append(part)
        self._writer.submit(self._write)

    def call(self, work: Callable[[], object]) -> None:
        """Let the thread that writes do something else."""
        self._writer.submit(work)

    def trim(self, slots: Slots) -> None:
        """Have a thread give the memory of returned buffers back to the system."""
        self._writer.submit(slots.trim, self.pace.rest)

    def _write(self) -> None:
        """Do some of the work: often all of it, so that the next calls have none."""
        work, nbytes = list[Write | Part](), 0
        while self._work and nbytes < BATCH:
            work.append(each := self._work.popleft())
            nbytes += each.buffer.nbytes if isinstance(each, Write) else 0
        if work:
            self._report([Written(*each) for each in self.parts.write(work, self.pace.rest)])

    def read(self, work: Sequence[Read], parts: PartsFile | None = None) -> None:
        """Read parts into their buffers, of this file or another one."""
        parts = parts or self.parts
        with self._lock:
            self._left += len(work)
        share = max(sum(each.buffer.nbytes for each in work) // READERS, LEAST_SHARE)
        lists, left = list[list[Read]](), share
        for together in parts.together(work):
            lists.append(together)
            left -= sum(each.buffer.nbytes for each in together)
            if left <= 0:
                self._begin_read(lists, parts)
                lists, left = [], share
        if lists:
            self._begin_read(lists, parts)

    def _begin_read(self, lists: list[list[Read]], parts: PartsFile) -> None:
        self._readers.submit(self._read, iter(lists), parts.read(lists))

    def _read(self, lists: Iterator[list[Read]], results: Iterator[list[bool]]) -> None:
        """Read some lists, and go on after those of other fetches. Systems read ahead in a file
        that is read in order, so one reader has a stretch of it, by one descriptor."""
        left, started = MOST_SHARE, perf_counter()
        for whole, work in zip(results, lists, strict=False):  # `results` has something to do last
            seconds = perf_counter() - started
            pairs = zip(work, whole, strict=True)
            self._report([Fetched(*each, seconds / len(work)) for each in pairs])
            self.pace.rest()
            started = perf_counter()
            left -= sum(each.buffer.nbytes for each in work)
            if left <= 0:
                with suppress(RuntimeError):  # it has been closed
                    self._readers.submit(self._read, lists, results)
                return

    def _report(self, reports: Iterable[Written | Fetched]) -> None:
        with self._lock:
            before = len(self._reports)
            self._reports.extend(reports)
            self._left -= len(self._reports) - before
            now = monotonic()
            if not self._left or now - self._told > PAUSE:
                self._told = now
                self.signal()

    def signal(self) -> None:
        """Make the descriptor readable. Only the thread that calls `take` may call this without the
        lock."""
        self._signalled = True
        try:
            os.write(self._signal, b"\0")
        except BlockingIOError:  # it is readable
            pass

    def take(self) -> list[Written | Fetched]:
        """Return what has been done since the last call. The engine's thread calls it, between all
        steps."""
        self.pace.look()
        with self._lock:
            if self._signalled:
                self._signalled = False
                with suppress(BlockingIOError):
                    while os.read(self.descriptor, 4096):
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
