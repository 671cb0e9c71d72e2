"""Copies stored tensors from a mapped file to a device through two page-locked buffers: the host
fills one while the device copies the other. No tensor is on the host as a whole."""

from __future__ import annotations

import math

from attrs import define, field
from torch import Tensor, empty

from inferno.device.staging import HostBuffers

CHUNK = 64 << 20
"""Size of a buffer in bytes: large enough that the cost of starting a copy is negligible."""


@define(eq=False)
class WeightStream:
    """Copies tensors to one device. For the CPU, tensors stay in the file's pages."""

    device: str
    """torch's name of the device."""
    chunk: int = CHUNK
    copied: bool = False
    """Whether to copy on the CPU too, as for other devices. For tests."""
    _buffers: HostBuffers | None = field(init=False, default=None)

    def __call__(self, stored: Tensor) -> Tensor:
        """Return the tensor on the device: contiguous, unless it is the CPU. The last copy may
        still be running. Later work on the device waits for it, and `stored` may be freed."""
        if self.device == "cpu" and not self.copied:
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
        self._buffers.next()
        host = self._buffers.current[: part.nbytes].view(part.dtype).view(part.shape)
        host.copy_(part)  # reads the file
        self._buffers.send(target, host)
