"""Memory for a model's weights, whose pages are faulted in while torch is being imported.

Weights are repacked into fresh memory. The system finds and clears its pages on first touch, which
takes longer than the copying on a virtual machine. Importing torch uses one core, so another thread
can touch the pages meanwhile.

Packed weights are read up to a sixth faster from huge pages. If the host of a virtual machine
reclaims free memory, allocating them is ten times slower than allocating small ones: then the model
starts on small pages, which are collapsed into huge ones while it runs.
"""

from __future__ import annotations

import ctypes
import mmap
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Thread

from inferno.contracts import PackedParts

HUGE_PAGE = 2 * 1024 * 1024
NODES = Path("/sys/devices/system/node")
"""Where Linux lists the NUMA nodes."""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14; elsewhere, pages are faulted in on first touch."""
_COLLAPSE = 25
"""MADV_COLLAPSE, since Linux 6.1: replaces small pages by a huge page."""
_CHUNK = 2 * HUGE_PAGE
"""Bytes per call: nothing else in this process can map memory meanwhile, and an import does so all
the time."""
_SLOW_SECONDS = 0.006
"""Limit for a chunk: usual are 0.4 ms, and 15 ms if the host must provide each small page."""
_SLOW_CHUNKS = 4
"""Surplus of slow chunks after which the rest is allocated in small pages."""
_PAUSE = 1
"""Seconds of pause per second of collapsing, which takes a core from the computation."""


def fresh(nbytes: int) -> tuple[mmap.mmap, int]:
    """Reserve `nbytes` of zeroed memory without touching it. Returns the mapping and the offset of
    its first huge-page boundary; whole 2 MiB pages are advised huge, the tail is not."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, nbytes), 0
    # Private: shared memory, the default, seldom gets huge pages.
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    memory.madvise(mmap.MADV_HUGEPAGE, start, nbytes // HUGE_PAGE * HUGE_PAGE)
    return memory, start


def huge_pages() -> bool:
    """Whether private memory can have huge pages."""
    try:
        return "[never]" not in HUGE_PAGES.read_text()
    except OSError:
        return False


def has_nodes() -> bool:
    """Whether this is a NUMA machine: each thread must touch its own pages."""
    return len(list(NODES.glob("node[0-9]*"))) > 1


class Reserve:
    """`nbytes` of zeroed memory, handed out in order while a thread faults in its pages."""

    def __init__(self, nbytes: int) -> None:
        self._memory, self._next = fresh(nbytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._first, self._end = self._next, self._next + nbytes
        self._small_from = self._end
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="inferno-cpu pages", daemon=True)
        self._thread.start()

    def take(self, nbytes: int) -> tuple[mmap.mmap, int] | None:
        """Return the mapping and the offset of the next `nbytes`, aligned to a page; None if they
        do not fit."""
        start = self._next
        if start + nbytes > self._end:
            return None
        self._next += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return self._memory, start

    def release(self) -> None:
        """Free what was not taken. The rest is freed with its last view."""
        self._stopped.set()
        self._thread.join()
        if self._next < self._end:
            self._memory.madvise(mmap.MADV_DONTNEED, self._next, self._end - self._next)
        first, last = self._small_from, self._next // HUGE_PAGE * HUGE_PAGE
        if first < last:
            self._memory.madvise(mmap.MADV_HUGEPAGE, first, last - first)
            pages = weakref.ref(self._memory), self._address, range(first, last, HUGE_PAGE)
            Thread(target=_collapse, args=pages, name="inferno-cpu huge pages", daemon=True).start()

    def _work(self) -> None:
        for _ in self._populated():
            pass

    def _populated(self) -> Iterator[int]:
        """Fault in chunk by chunk. Yields the offset behind each; ends if the system cannot."""
        position, slow = self._first, 0
        while position < self._end and not self._stopped.is_set():
            begin = time.perf_counter()
            nbytes = min(_CHUNK, self._end - position)
            if _madvise(self._address + position, nbytes, _POPULATE_WRITE):
                return
            position += nbytes
            slow = max(0, slow + (1 if time.perf_counter() - begin > _SLOW_SECONDS else -1))
            if slow > _SLOW_CHUNKS and position < self._small_from:
                self._memory.madvise(mmap.MADV_NOHUGEPAGE, position, self._end - position)
                self._small_from = position
            yield position


class Copy(Reserve):
    """The parts of a file, which the thread copies in their order. `take_part` waits for one."""

    def __init__(self, parts: PackedParts) -> None:
        self._parts, nbytes = parts, 0
        self._offsets = dict[str, int]()
        for name, place in parts.places.items():
            self._offsets[name] = nbytes
            nbytes += -(-place.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._done = {name: Event() for name in parts.places}
        self._error: Exception | None = None
        super().__init__(nbytes)
        self._next = self._end

    def take_part(self, name: str) -> memoryview:
        """Return the bytes of a part. Raises OSError or ValueError if the file cannot be read."""
        self._done[name].wait()
        if self._error is not None:
            raise self._error
        start = self._first + self._offsets[name]
        return memoryview(self._memory)[start : start + self._parts.places[name].nbytes]

    def _work(self) -> None:
        try:
            ready = self._populated()
            for name, place in self._parts.places.items():
                start, done = self._first + self._offsets[name], 0
                while done < place.nbytes and not self._stopped.is_set():
                    behind = min(next(ready, self._end) - start, place.nbytes)
                    part = memoryview(self._memory)[start + done : start + behind]
                    self._parts.read_into(name, part, done)
                    done = behind
                self._done[name].set()
        except (OSError, ValueError) as error:
            self._error = error
        finally:
            for event in self._done.values():
                event.set()


def _collapse(memory: weakref.ref[mmap.mmap], address: int, offsets: range) -> None:
    """Replace small pages by huge ones at these offsets, until all are replaced, the system refuses
    or the memory is freed."""
    for offset in offsets:
        begin, mapping = time.perf_counter(), memory()
        if mapping is None or _madvise(address + offset, HUGE_PAGE, _COLLAPSE):
            return
        del mapping
        time.sleep(_PAUSE * (time.perf_counter() - begin))


def give_back(address: int, nbytes: int) -> bool:
    """Unmap the pages of a mapping until they are touched again. Returns whether it worked."""
    return _madvise(address, nbytes, mmap.MADV_DONTNEED) == 0


def _madvise(address: int, nbytes: int, advice: int) -> int:
    """Call madvise without the GIL, which `mmap.madvise` keeps."""
    call = ctypes.CDLL(None).madvise
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return int(call(address, nbytes, advice))


current: ContextVar[Reserve | None] = ContextVar("current", default=None)
"""The reserve of the model that is being loaded."""


@contextmanager
def reserved(nbytes: int) -> Iterator[None]:
    """Return the context of `contracts.KernelProvider.prepare`. On a NUMA machine there is no
    reserve: each thread must touch its own pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or has_nodes():
        yield
        return
    pool = Reserve(nbytes)
    token = current.set(pool)
    try:
        yield
    finally:
        current.reset(token)
        pool.release()
