"""Host memory for parts of blocks, whose pages are used again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from attrs import define, field, frozen
from torch import Tensor

SPARE = 64 << 20
"""Bytes for parts on their way, beside the host tier's."""


@frozen(eq=False)
class Buffer:
    """Memory of one part."""

    data: Tensor
    slot: int = -1
    """Its place among the others of its group; -1: it has memory of its own."""

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@define(eq=False)
class Slots:
    """Gives out buffers of one size. The first free ones are given first: parts that are saved
    together are neighbours, and are copied together."""

    size: int
    memory: Tensor
    """(slots, bytes of one)"""
    _unused: int = 0
    """The first slot that was never given out; there are no free ones after `_free` but these."""
    _free: list[int] = field(factory=list)

    @classmethod
    def of(cls, size: int, limit: int) -> Slots:
        """Reserve addresses for so many bytes. Memory is taken when it is written to."""
        count = limit // size if size else 0
        try:
            pages = mmap(-1, count * size, flags=MAP_PRIVATE | MAP_ANONYMOUS) if count else b""
        except OSError:  # more than the machine has: each buffer then has memory of its own
            count, pages = 0, b""
        memory = torch.frombuffer(pages, dtype=torch.uint8) if count else torch.empty(0)
        return cls(size, memory.view(count, size) if count else memory)

    def take(self) -> Buffer:
        if self._free:
            slot = heappop(self._free)
        elif self._unused < len(self.memory):
            slot, self._unused = self._unused, self._unused + 1
        else:
            return Buffer(torch.empty(self.size, dtype=torch.uint8))
        return Buffer(self.memory[slot], slot)

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. Its content is lost once it is given out again."""
        if buffer.slot >= 0:
            heappush(self._free, buffer.slot)


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
