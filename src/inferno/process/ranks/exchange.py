"""The data plane of ranks on one machine: torch.distributed's gloo, over the loopback device."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from attrs import define
from torch import Tensor
from torch._C._distributed_c10d import FileStore

STORE = "store"
"""The file in the ranks' folder by which they find each other."""
LOOPBACK = "127.0.0.1"
TIMEOUT = 120.0
"""Seconds that a rank waits for the others in a step."""


@define(eq=False)
class Gloo:
    """One rank's connections to the others (`ops.collectives.Exchange`)."""

    rank: int
    ranks: int
    folder: Path
    _group: Any = None

    def connect(self) -> None:
        """Meet the other ranks: all of them call this. Raises RuntimeError."""
        gloo: Any = torch.distributed.ProcessGroupGloo  # its stubs lack what it takes
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=LOOPBACK)]
        options._timeout = timedelta(seconds=TIMEOUT)
        store = FileStore(str(self.folder / STORE), self.ranks)
        self._group = gloo(store, self.rank, self.ranks, options)

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        assert self._group is not None, "ranks meet before the first step"
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        self._group.allgather([parts], [x]).wait()
        return parts

    def close(self) -> None:
        """End the connections: others that wait for this rank fail at once."""
        self._group = None
