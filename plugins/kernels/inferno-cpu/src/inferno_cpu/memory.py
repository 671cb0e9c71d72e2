"""Memory for weights, which are read in order, again and again."""

from __future__ import annotations

import torch
from torch import Tensor

from inferno_cpu import reserve


def pages(nbytes: int) -> Tensor:
    """`nbytes` zeros (uint8), at a page's beginning, on huge pages where the system has them:
    reading them then hardly ever waits for an address. They are the next of the reserve, or else
    memory of their own, given back to the system when the last view of them goes, of which each
    page is laid where the thread that first writes to it runs."""
    current = reserve.current.get()
    memory, start = (current and current.take(nbytes)) or reserve.fresh(nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + nbytes]
