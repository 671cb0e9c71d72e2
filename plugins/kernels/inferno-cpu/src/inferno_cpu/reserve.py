"""Memory for a model's weights, filled with pages while torch is being imported.

Weights are repacked into fresh memory, whose pages the system finds and clears when they are first
touched: on a virtual machine that takes longer than the copying. The import of torch before it
keeps one core busy, and needs none of that memory.

On huge pages packed weights are read up to a sixth faster. Where the host of a virtual machine
takes free memory back, these are ten times slower to come by than small ones: then the model starts
on small ones, which are exchanged while it runs.
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

HUGE_PAGE = 2 * 1024 * 1024
NODES = Path("/sys/devices/system/node")
"""Where Linux lists the parts of the memory that are near to different cores."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, of Linux since 5.14; others refuse it, and the pages come when they are
touched."""
_COLLAPSE = 25
"""MADV_COLLAPSE, of Linux since 6.1: a huge page in the place of small ones."""
_CHUNK = 2 * HUGE_PAGE
"""What is asked for at once: nothing else in this process can map memory meanwhile, and an import
does it all the time."""
_SLOW_SECONDS = 0.006
"""For a chunk: usual are 0.4 ms, and 15 ms where each small page is the host's business."""
_SLOW_CHUNKS = 4
"""More of them than others, and the rest is had in small pages."""
_REST = 1
"""How much longer the exchange rests than it works: whoever computes meanwhile needs its core."""


def fresh(nbytes: int) -> tuple[mmap.mmap, int]:
    """Zeros that no page stands behind yet, and where in them `nbytes` begin at a huge page. Such
    will stand behind all that fills them, where the system has them; a last one for a remainder
    would be memory for nothing."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, nbytes), 0
    # Private: shared memory, which is the default, is seldom given huge pages.
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    memory.madvise(mmap.MADV_HUGEPAGE, start, nbytes // HUGE_PAGE * HUGE_PAGE)
    return memory, start


class Reserve:
    """`nbytes` zeros, handed out from the beginning on."""

    def __init__(self, nbytes: int) -> None:
        self._memory, self._next = fresh(nbytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._end = self._next + nbytes
        self._small_from = self._end
        self._left = Event()
        self._thread = Thread(
            target=self._populate, args=(self._next,), name="inferno-cpu pages", daemon=True
        )
        self._thread.start()

    def take(self, nbytes: int) -> tuple[mmap.mmap, int] | None:
        """The memory, and where in it the next `nbytes` begin, at a multiple of a page; None where
        they do not fit any more."""
        start = self._next
        if start + nbytes > self._end:
            return None
        self._next += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return self._memory, start

    def release(self) -> None:
        """Gives back what nobody took. The rest goes when the last view of it does."""
        self._left.set()
        self._thread.join()
        if self._next < self._end:
            self._memory.madvise(mmap.MADV_DONTNEED, self._next, self._end - self._next)
        first, last = self._small_from, self._next // HUGE_PAGE * HUGE_PAGE
        if first < last:
            self._memory.madvise(mmap.MADV_HUGEPAGE, first, last - first)
            given = weakref.ref(self._memory), self._address, range(first, last, HUGE_PAGE)
            Thread(target=_exchange, args=given, name="inferno-cpu huge pages", daemon=True).start()

    def _populate(self, position: int) -> None:
        slow = 0
        while position < self._end and not self._left.is_set():
            begin = time.perf_counter()
            if _madvise(
                self._address + position, min(_CHUNK, self._end - position), _POPULATE_WRITE
            ):
                return
            position += _CHUNK
            slow = max(0, slow + (1 if time.perf_counter() - begin > _SLOW_SECONDS else -1))
            if slow > _SLOW_CHUNKS and position < self._small_from:
                self._memory.madvise(mmap.MADV_NOHUGEPAGE, position, self._end - position)
                self._small_from = position


def _exchange(memory: weakref.ref[mmap.mmap], address: int, places: range) -> None:
    """Huge pages for small ones, at these places in the memory, until all are or nobody needs them
    any more."""
    for place in places:
        begin, held = time.perf_counter(), memory()
        if held is None or _madvise(address + place, HUGE_PAGE, _COLLAPSE):
            return
        del held
        time.sleep(_REST * (time.perf_counter() - begin))


def _madvise(address: int, nbytes: int, advice: int) -> int:
    """mmap's own keeps Python's lock."""
    call = ctypes.CDLL(None).madvise
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return int(call(address, nbytes, advice))


current: ContextVar[Reserve | None] = ContextVar("current", default=None)
"""Of the model that is being loaded."""


@contextmanager
def reserved(nbytes: int) -> Iterator[None]:
    """See `contracts.KernelProvider.prepare`. Where memory is near to some cores and far from
    others, each thread shall touch its own pages: there is no reserve."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or len(list(NODES.glob("node[0-9]*"))) > 1:
        yield
        return
    found = Reserve(nbytes)
    token = current.set(found)
    try:
        yield
    finally:
        current.reset(token)
        found.release()
