"""Memory for weights, and of those that they are packed from."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from inferno_cpu import reserve
from inferno_cpu.layouts import PANEL_ROWS

_PIECE = 32 * 1024 * 1024
"""Bytes of a matrix that are packed before their pages are given back."""
_PAGEMAP = "/proc/self/pagemap"
"""What each page of this process is: 8 bytes a page."""
_PRESENT, _OF_FILE = np.uint64(3 << 62), np.uint64(1 << 61)
"""Bits of a page in memory or swapped out, and of one that belongs to a file."""


def pages(nbytes: int) -> Tensor:
    """Allocate zeroed, page-aligned memory (uint8) for weights, from the active reserve if it has
    room, else freshly mapped. Huge pages save TLB misses; pages are placed by first touch. The
    memory is unmapped when its last view is freed."""
    current = reserve.current.get()
    memory, start = (current and current.take(nbytes)) or reserve.fresh(nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + nbytes]


def passing(nbytes: int) -> Tensor:
    """Map memory (uint8) for a matrix that is soon repacked. It is unmapped when its last view is
    freed: the allocator would keep it, in holes that the packed matrices do not fit."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8)


def pieces(data: Tensor) -> Iterator[slice]:
    """Yield the rows of a matrix (rows, ...) in pieces that are packed one after the other. The
    pages of a finished piece are given back if they can be read again from a mapped file: a large
    matrix is then never in memory twice."""
    step = max(1, _PIECE // max(1, data[:1].nbytes) // PANEL_ROWS) * PANEL_ROWS
    for start in range(0, len(data), step):
        yield slice(start, start + step)
        if len(data) > step and data.is_contiguous():
            piece = data[start : start + step]
            forget(piece.data_ptr(), piece.nbytes)


def forget(address: int, nbytes: int) -> bool:
    """Give back the whole pages of this range, if all belong to a mapped file and were not written
    to: they are read from it again when they are touched. Returns whether they were."""
    first = -(-address // mmap.PAGESIZE)
    count = (address + nbytes) // mmap.PAGESIZE - first
    if count <= 0:
        return False
    try:
        with open(_PAGEMAP, "rb", buffering=0) as pagemap:
            pagemap.seek(first * 8)
            entries = np.frombuffer(pagemap.read(count * 8), dtype=np.uint64)
    except OSError:
        return False
    present = entries[entries & _PRESENT != 0]
    if len(entries) < count or not (present & _OF_FILE).all():
        return False
    return reserve.give_back(first * mmap.PAGESIZE, count * mmap.PAGESIZE)
