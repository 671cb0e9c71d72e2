"""How ranks exchange tensors: by a kernel provider that can, else by torch.distributed's gloo, over
the loopback device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from inferno.contracts import COLLECTIVES, Communicator, RankPlace
from inferno.ops.collectives import Operators
from inferno.plan import Opened

STORE = "store"
"""The file in the ranks' folder by which they find each other."""
LOOPBACK = "127.0.0.1"

Build = Callable[[RankPlace], Communicator]
"""Builds a rank's communicator."""


def build_of(opened: Opened) -> Build:
    """Return what builds the communicator that the plan has chosen."""
    for use in opened.plan.kernels:
        if use.op == COLLECTIVES:
            return opened.parts.kernels[use.name].ops[COLLECTIVES]
    return Gloo


class Gloo:
    """One rank's connections to the others (`contracts.Communicator`)."""

    def __init__(self, place: RankPlace) -> None:
        self._place = place
        self._group: Any = None
        operators = Operators.of(self._exchange)
        self.all_reduce, self.all_gather = operators.all_reduce, operators.all_gather

    def connect(self) -> None:
        gloo: Any = torch.distributed.ProcessGroupGloo  # its stubs lack what it takes
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=LOOPBACK)]
        options._timeout = timedelta(seconds=self._place.seconds)
        rank, ranks = self._place.rank, self._place.ranks
        store = FileStore(str(Path(self._place.folder) / STORE), ranks)
        self._group = gloo(store, rank, ranks, options)

    def _exchange(self, x: Tensor) -> Sequence[Tensor]:
        if (group := self._group) is None:
            raise ConnectionError("this rank has left the others")
        parts = [torch.empty_like(x) for _ in range(self._place.ranks)]
        try:
            group.allgather([parts], [x]).wait()
        except RuntimeError as error:  # which of them is not said: torch's errors have one type
            raise ConnectionError(f"another rank has left or is not heard: {error}") from error
        return parts

    def close(self) -> None:
        self._group = None
