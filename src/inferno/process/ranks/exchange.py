"""How ranks exchange tensors: by a kernel provider that can, else by torch.distributed's gloo, over
the loopback device or the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from inferno.contracts import Communicator, RankPlace
from inferno.ops.collectives import Operators
from inferno.plan import Plan

STORE = "store"
"""The file in the ranks' folder by which they find each other."""
LOOPBACK = "127.0.0.1"
LOOK = timedelta(seconds=0.25)
"""How often a rank that waits looks whether it has left (`close`): gloo would wait on."""

Build = Callable[[RankPlace], Communicator]
"""Builds a rank's communicator."""


def place_of(plan: Plan, rank: int, folder: str) -> RankPlace:
    """Return the place of a rank. `plan` is its own (`plan_of_rank`)."""
    assert plan.ranks is not None, "a plan with ranks"
    count, stages, device = plan.ranks.count, plan.ranks.stages, plan.device.torch_name
    return RankPlace(rank=rank, ranks=count, folder=folder, stages=stages, device=device)


class Gloo:
    """One rank's connections to the others (`contracts.Communicator`)."""

    def __init__(self, place: RankPlace, host: str = LOOPBACK, store: Any = None) -> None:
        """`host` is this machine's address by which the others reach it. They find each other by
        `store`, torch's, or by a file in their folder."""
        self._place, self._host, self._store = place, host, store
        self._group: Any = None
        operators = Operators.of(self._exchange)
        self.all_reduce, self.all_gather = operators.all_reduce, operators.all_gather

    def connect(self) -> None:
        gloo: Any = torch.distributed.ProcessGroupGloo  # its stubs lack what it takes
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=self._place.seconds)
        rank, ranks = self._place.rank, self._place.ranks
        store = self._store or FileStore(str(Path(self._place.folder) / STORE), ranks)
        self._group = gloo(store, rank, ranks, options)

    def _exchange(self, x: Tensor) -> Sequence[Tensor]:
        if (group := self._group) is None:
            raise ConnectionError("this rank has left the others")
        if x.device.type != "cpu":  # gloo exchanges what is in the host's memory
            return [part.to(x.device) for part in self._exchange(x.cpu())]
        parts = [torch.empty_like(x) for _ in range(self._place.ranks)]
        work = group.allgather([parts], [x])
        while True:
            try:
                work.wait(LOOK)
                return parts
            except RuntimeError as error:  # which it is is not said: torch's errors have one type
                if work.is_completed():
                    raise ConnectionError(
                        f"another rank has left or is not heard: {error}"
                    ) from error
                if self._group is None:
                    threading.Thread(target=_keep, args=(group, work), daemon=True).start()
                    raise ConnectionError("this rank has left the others") from error

    def close(self) -> None:
        self._group = None


def _keep(group: Any, work: Any) -> None:
    """Keep gloo's group while its thread waits for a rank that is not heard: whoever drops it would
    wait too."""
    while not work.is_completed():
        time.sleep(1)
