"""Memory of caches, which is zeros at first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap

import torch
from torch import Tensor

from inferno.contracts import CacheTensor


def zeros(tensors: Sequence[tuple[int, CacheTensor]], device: str) -> Iterator[Tensor]:
    """Yield tensors, each (count, *shape of one).

    On a CPU they are in one mapping, at page boundaries: those of one size are at equal distances,
    so that a place of all of them can be copied at once. The operating system zeroes the pages on
    first touch, so unused blocks cost no memory. `torch.zeros` would write them all: that takes
    seconds and makes the whole budget resident.
    """
    shapes = [((count, *tensor.shape), getattr(torch, tensor.dtype)) for count, tensor in tensors]
    if device != "cpu":
        yield from (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes)
        return
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
    room = [-(-size // PAGESIZE) * PAGESIZE for size in sizes]
    pages = mmap(-1, max(PAGESIZE, sum(room)), flags=MAP_PRIVATE | MAP_ANONYMOUS)
    memory, start = torch.frombuffer(pages, dtype=torch.uint8), 0
    for (shape, dtype), size, taken in zip(shapes, sizes, room, strict=True):
        yield memory[start : start + size].view(dtype).view(shape)
        start += taken
