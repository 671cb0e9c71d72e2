"""Copies to a device that run beside what it computes, and the page-locked memory that they come
from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from attrs import define, field
from torch import Tensor

from inferno.device.staging import host_buffer

Mark = Any
"""A point in a queue of work, such as a `torch.cuda.Event`."""
CHUNK = 256 << 20
"""Bytes that are page-locked at once: torch's allocator rounds up to powers of two."""
_ALIGNED = 256


class SideQueue(Protocol):
    """A device's second queue of work, for copies, beside the one in which it computes."""

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], behind: Mark) -> Mark:
        """Enqueue copies to targets on the device from page-locked sources, (target, source), which
        begin once the main queue has reached a mark. Returns the mark at their end."""
        ...

    def mark(self) -> Mark:
        """Return a mark after all work enqueued in the main queue so far."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let later work of the main queue begin once the copies have reached a mark."""
        ...


class NoQueue:
    """That of a CPU, whose copies are done when a call returns."""

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], behind: Mark) -> Mark:
        for target, source in pairs:
            target.copy_(source)

    def mark(self) -> Mark: ...

    def wait(self, mark: Mark) -> None: ...


class StreamQueue:
    """That of a device whose module of torch has streams and events."""

    def __init__(self, kind: str) -> None:
        self._module: Any = torch.get_device_module(kind)
        self._side = self._module.Stream()

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], behind: Mark) -> Mark:
        self._side.wait_event(behind)
        with self._module.stream(self._side):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        done = self._module.Event()
        done.record(self._side)
        return done

    def mark(self) -> Mark:
        made = self._module.Event()
        made.record(self._module.current_stream())
        return made

    def wait(self, mark: Mark) -> None:
        self._module.current_stream().wait_event(mark)


def side_queue(device: str) -> SideQueue:
    """Return a new queue of a device, by torch's name for it."""
    kind = device.partition(":")[0]
    return NoQueue() if kind == "cpu" else StreamQueue(kind)


@define(eq=False)
class HostCopies:
    """Copies of tensors in page-locked host memory, one behind the other."""

    device: str
    """torch's name of the device that they are for."""
    chunk: int = CHUNK
    _rest: Tensor = field(init=False, factory=lambda: torch.empty(0, dtype=torch.uint8))
    """What is left of the last chunk."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy."""
        size = -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        if size > len(self._rest):
            self._rest = host_buffer(max(size, self.chunk), self.device)
        place, self._rest = self._rest[: tensor.nbytes], self._rest[size:]
        made = place.view(tensor.dtype).view(tensor.shape)
        return made.copy_(tensor)
