"""Copies stored tensors to a device: from the pages of a mapped file through two buffers, one of
which is filled while the device copies the other. No tensor is on the host as a whole."""

from __future__ import annotations

import math

from attrs import define, field
from torch import Tensor, empty

from inferno.device.staging import HostBuffers

CHUNK = 64 << 20
"""Bytes of a buffer: large enough that starting a copy costs nothing."""


@define(eq=False)
class WeightStream:
    """Copies tensors to one device. On the CPU they stay where they are, in the file's pages."""

    device: str
    """Torch's name of it."""
    chunk: int = CHUNK
    apart: bool = False
    """Whether to copy even on the CPU, as to other devices: for tests."""
    _buffers: HostBuffers | None = field(init=False, default=None)

    def __call__(self, stored: Tensor) -> Tensor:
        """Return the tensor on the device: contiguous, unless it is the CPU. The last copy may
        still run; the device's later work waits for it, and `stored` may be dropped."""
        if self.device == "cpu" and not self.apart:
            return stored
        made = empty(stored.shape, dtype=stored.dtype, device=self.device)
        if stored.nbytes == 0:
            return made
        row = stored.itemsize * math.prod(stored.shape[1:])
        rows, parts = (made, stored)
        if stored.is_contiguous() or row > self.chunk:
            rows, parts, row = made.view(-1), stored.contiguous().view(-1), stored.itemsize
        count = max(1, self.chunk // row)
        for first in range(0, len(parts), count):
            self._send(rows[first : first + count], parts[first : first + count])
        return made

    def _send(self, target: Tensor, part: Tensor) -> None:
        if self._buffers is None:
            self._buffers = HostBuffers(self.chunk, self.device)
        held = self._buffers.buffers[self._buffers.next()]
        host = held[: part.nbytes].view(part.dtype).view(part.shape)
        host.copy_(part)  # reads the file
        self._buffers.send(target, host)
