"""Memory on the host from which, and to which, a device copies while the host goes on."""

from __future__ import annotations

from typing import Protocol

import torch
from attrs import define, field
from torch import Tensor


class Fence(Protocol):
    """A point in a device's work: `torch.cuda.Event` and its like."""

    def record(self) -> None:
        """Set the point behind all work so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has reached it."""
        ...


class NoFence:
    """The fence of a CPU, which has done its work when a call returns."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


def fence(device: str) -> Fence:
    """Return a new fence of a device, by torch's name for it."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return NoFence()
    made: Fence = torch.get_device_module(kind).Event()
    return made


def host_buffer(nbytes: int, device: str) -> Tensor:
    """Return bytes on the host, page-locked for a device other than the CPU."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device != "cpu")


@define(eq=False)
class HostBuffers:
    """Buffers on the host that take turns, so that one can be written while the device still copies
    from another."""

    nbytes: int
    """Of each."""
    device: str
    count: int = 2
    buffers: list[Tensor] = field(init=False)
    _fences: list[Fence] = field(init=False)
    _turn: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.buffers = [host_buffer(self.nbytes, self.device) for _ in range(self.count)]
        self._fences = [fence(self.device) for _ in range(self.count)]

    def next(self) -> int:
        """Return the index of the next buffer, once the device has finished copying from it."""
        self._turn = (self._turn + 1) % self.count
        self._fences[self._turn].synchronize()
        return self._turn

    def send(self, target: Tensor, source: Tensor) -> None:
        """Start a copy to the device from the current buffer, of which `source` is a part."""
        target.copy_(source, non_blocking=True)
        self._fences[self._turn].record()
