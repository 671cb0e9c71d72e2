"""A device that copies from the host as late as it may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from inferno.device import staging
from inferno.device.staging import HostBuffers


class LateCopies:
    """A device that copies only when the host waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue: list[Callable[[], object]] = []
        self.waits = self.sent = 0
        device = self

        class Late:
            behind = 0

            def record(self) -> None:
                self.behind = device.sent

            def synchronize(self) -> None:
                device.waits += 1
                device.run(self.behind)

        def send(buffers: HostBuffers, target: Tensor, source: Tensor) -> None:
            self.queue.append(lambda: target.copy_(source))
            self.sent += 1
            buffers._fences[buffers._turn].record()

        monkeypatch.setattr(staging, "fence", lambda device: Late())
        monkeypatch.setattr(HostBuffers, "send", send)

    def run(self, count: int) -> None:
        """Run the first `count` copies of all that were ever queued."""
        done = self.sent - len(self.queue)
        for copy in self.queue[: count - done]:
            copy()
        del self.queue[: max(0, count - done)]
