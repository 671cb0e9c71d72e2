"""Host memory for parts of blocks, whose pages are used again."""

from __future__ import annotations

import mmap as mmap_module
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap

import torch
from attrs import Factory, define, field
from torch import Tensor

SPARE, BURST = 64 << 20, 1 << 30
"""Bytes for parts on their way, beside the host tier's: as they are common, and at most. What only
bursts need is free for the system to take, which costs less than new memory for each burst."""
_FREE: int | None = getattr(mmap_module, "MADV_FREE", None)


@define(eq=False)
class Buffer:
    """Memory of one part. A step that fetches a prompt takes hundreds, and needs the content of
    none: tensors and views of it are made when they are asked for."""

    _memory: Tensor
    """Of all of its group, or of this one alone."""
    slot: int = -1
    """Its place among the others of its group; -1: it has separate memory."""
    nbytes: int = field(default=Factory(lambda buffer: buffer._memory.nbytes, takes_self=True))
    _view: memoryview | None = None
    """Of the memory of its group."""

    @property
    def data(self) -> Tensor:
        return self._memory if self.slot < 0 else self._memory[self.slot]

    @property
    def body(self) -> memoryview:
        """Its bytes."""
        if self._view is None:
            return self.data.numpy().data
        start = self.slot * self.nbytes
        return self._view[start : start + self.nbytes]


@define(eq=False)
class Slots:
    """Gives out buffers of one size. The first free ones are given first: parts that are saved
    together are neighbours, and are copied together."""

    size: int
    memory: Tensor
    """(slots, bytes of one)"""
    _pages: mmap | None = None
    _view: memoryview | None = None
    _kept: int = 0
    """Bytes at the beginning that keep their memory."""
    _unused: int = 0
    """The first slot that was never given out; there are no free ones after `_free` but these."""
    _free: list[int] = field(factory=list)
    _returned: deque[int] = field(factory=deque)
    """Free ones whose memory the system is to have: `trim` lets it go."""
    _trimmed: deque[int] = field(factory=deque)
    """Those of which it has."""

    @classmethod
    def of(cls, size: int, kept: int, most: int) -> Slots:
        """Reserve addresses for `most` bytes. Memory is taken when it is written to, and of the
        first `kept` bytes never given back."""
        if count := most // size if size else 0:
            try:
                pages = mmap(-1, count * size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
            except OSError:  # more than the machine has: each buffer then has memory of its own
                return cls(size, torch.empty(0))
            memory = torch.frombuffer(pages, dtype=torch.uint8).view(count, size)
            return cls(size, memory, pages, memoryview(pages), kept)
        return cls(size, torch.empty(0))

    def take(self) -> Buffer:
        while self._trimmed:
            heappush(self._free, self._trimmed.popleft())
        if self._free:
            slot = heappop(self._free)
        elif (returned := _popped(self._returned.popleft)) is not None:
            slot = returned
        elif self._unused < len(self.memory):
            slot, self._unused = self._unused, self._unused + 1
        else:
            return Buffer(torch.empty(self.size, dtype=torch.uint8))
        return Buffer(self.memory, slot, self.size, self._view)

    def give(self, buffer: Buffer) -> bool:
        """Take a buffer back. Its content is lost once it is given out again. Returns whether there
        is something to trim."""
        if buffer.slot < 0:
            return False
        if self._pages is None or _FREE is None or not self._kept <= buffer.slot * self.size:
            heappush(self._free, buffer.slot)
            return False
        self._returned.append(buffer.slot)
        return True

    def trim(self, rest: Callable[[], object] = lambda: None) -> None:
        """Give the memory of returned buffers beyond those that are kept back to the system. That
        takes 25 ms for a gigabyte, with the GIL held except in `rest`, which is called after each
        buffer. Another thread may call this while the usual one takes and gives buffers."""
        while (slot := _popped(self._returned.pop)) is not None:  # `take` cannot return it now
            begin = -(-(slot * self.size) // PAGESIZE) * PAGESIZE
            end = (slot + 1) * self.size // PAGESIZE * PAGESIZE
            if begin < end and self._pages is not None and _FREE is not None:
                self._pages.madvise(_FREE, begin, end - begin)
            self._trimmed.append(slot)
            rest()


def _popped(pop: Callable[[], int]) -> int | None:
    """Return a slot from one end of the queue. None: it is empty, or another thread was faster."""
    try:
        return pop()
    except IndexError:
        return None


def runs(places: Sequence[int], buffers: Sequence[Buffer]) -> Iterator[tuple[int, int]]:
    """Divide places and their buffers, by index from and to, into neighbours of both kinds."""
    first = 0
    for i in range(1, len(places) + 1):
        if (
            i == len(places)
            or places[i] != places[i - 1] + 1
            or buffers[i - 1].slot < 0
            or buffers[i].slot != buffers[i - 1].slot + 1
        ):
            yield first, i
            first = i
