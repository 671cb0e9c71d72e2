"""Memory for weights, which are read in order, again and again."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 * 1024 * 1024


def pages(nbytes: int) -> Tensor:
    """`nbytes` zeros (uint8), given back to the system when the last view of them goes. They begin at a huge page, and lie
    on huge pages where the system has them: reading them then hardly ever waits for an address. Each page is laid where the
    thread that first writes to it runs."""
    memory = mmap.mmap(-1, nbytes + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = torch.frombuffer(memory, dtype=torch.uint8)
    start = -block.data_ptr() % _HUGE_PAGE
    return block[start : start + nbytes]
