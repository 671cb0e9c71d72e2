"""Host buffers for copies to and from a device that do not block the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from attrs import define, field, frozen
from torch import Tensor


class Fence(Protocol):
    """A point in a device's queue of work, such as a `torch.cuda.Event`."""

    def record(self) -> None:
        """Set the point after all work enqueued so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has reached it."""
        ...


class NoFence:
    """The fence of a CPU, whose work is done when a call returns."""

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


def given_to(device: torch.device, values: Tensor) -> Tensor:
    """Return a tensor of the host on a device, without waiting for it."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


def sent(
    values: Sequence[Any], device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the values as a tensor on the device, without waiting for the device."""
    pinned = torch.device(device).type != "cpu"
    host = torch.tensor(values, dtype=dtype, pin_memory=pinned)
    return host.to(device, non_blocking=True) if pinned else host


def arriving(values: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start copies of a device's tensors to the host. Returns what waits for them and returns
    them."""
    device = str(values[0].device)
    hosts = [host_buffer(value.nbytes, device).view(value.dtype) for value in values]
    hosts = [host.view(value.shape) for host, value in zip(hosts, values, strict=True)]
    for host, value in zip(hosts, values, strict=True):
        host.copy_(value, non_blocking=True)
    behind = fence(device)
    behind.record()

    def wait() -> list[Tensor]:
        behind.synchronize()
        return hosts

    return wait


@frozen(eq=False)
class Arriving:
    """Integers that are being copied from a device to the host."""

    _wait: Callable[[], list[Tensor]]

    @classmethod
    def of(cls, values: Tensor) -> Arriving:
        """Start the copy of an int64 tensor to the host."""
        return cls(arriving([values]))

    def values(self) -> list[int]:
        """Wait for the copy, and return the integers."""
        [host] = self._wait()
        numbers: list[int] = host.tolist()
        return numbers


@define(eq=False)
class HostBuffers:
    """Host buffers that are used in turn: the host writes to one while the device still copies from
    another."""

    nbytes: int
    """Size of each buffer."""
    device: str
    count: int = 2
    buffers: list[Tensor] = field(init=False)
    _fences: list[Fence] = field(init=False)
    _turn: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.buffers = [host_buffer(self.nbytes, self.device) for _ in range(self.count)]
        self._fences = [fence(self.device) for _ in range(self.count)]

    @property
    def current(self) -> Tensor:
        """The buffer whose turn it is."""
        return self.buffers[self._turn]

    def next(self) -> int:
        """Wait until the device has copied the next buffer, and return its index."""
        self._turn = (self._turn + 1) % self.count
        self._fences[self._turn].synchronize()
        return self._turn

    def send(self, target: Tensor, source: Tensor) -> None:
        """Start a copy to the device from `source`, a part of the current buffer."""
        target.copy_(source, non_blocking=True)
        self._fences[self._turn].record()
