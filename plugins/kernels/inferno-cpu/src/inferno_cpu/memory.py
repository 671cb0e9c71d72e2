"""Memory for weights."""

from __future__ import annotations

import torch
from torch import Tensor

from inferno_cpu import reserve


def pages(nbytes: int) -> Tensor:
    """Allocate zeroed, page-aligned memory (uint8) for weights, from the active reserve if it has
    room, else freshly mapped. Huge pages save TLB misses; pages are placed by first touch. The
    memory is unmapped when its last view is freed."""
    current = reserve.current.get()
    memory, start = (current and current.take(nbytes)) or reserve.fresh(nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + nbytes]
