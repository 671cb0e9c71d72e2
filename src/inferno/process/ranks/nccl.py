"""Exchanges tensors of ranks on GPUs by torch.distributed's NCCL, from device to device.

Suffixes: R ranks, N elements of a tensor, n elements of one of R parts of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, FileStore

from inferno.contracts import RankPlace
from inferno.errors import DeviceError
from inferno.host import no_nccl_monitor
from inferno.ops.collectives import Operators, add_up, side_by_side
from inferno.process.ranks.exchange import LOOPBACK, STORE

SLICED_FROM = 256 << 10
"""Bytes of a tensor from which each of more than two ranks sums one slice of it. A rank then
receives less than twice the tensor, in two exchanges, instead of the tensors of all others in one.
"""
_LEAVING_SECONDS = 5.0
"""How long to wait for NCCL, which may wait for captured graphs to be dropped. Nothing needs that.
"""
_LONGEST_STEP = timedelta(minutes=30)
"""After so long NCCL ends the process. The engine's heartbeat ends one that hangs much earlier; the
first steps may compile kernels."""


class Nccl:
    """One rank's connections to the others (`contracts.Communicator`).

    NCCL's own sums depend on the size of a tensor. Here NCCL only moves parts, and each rank adds
    them up in rank order. So sums have the bits that `ops.collectives` promises.

    No exchange waits for the device, so none fails when another rank has left: the caller checks
    that before it uses what a step has computed. `close` lets the device go on, with values that
    mean nothing.
    """

    def __init__(self, place: RankPlace, host: str = LOOPBACK, store: Any = None) -> None:
        """The ranks find each other by `store`, torch's, or by a file in their folder. `host`, this
        machine's address, is not used: NCCL chooses the network."""
        self._place, self._store = place, store
        self._group: Any = None
        operators = Operators(self._sum, partial(side_by_side, self._exchange))
        self.all_reduce, self.all_gather = operators.all_reduce, operators.all_gather
        self._gathering, self._dealing = AllgatherOptions(), AllToAllOptions()
        # On the stream of the step, so that no event is recorded and waited for with each sum.
        self._gathering.asyncOp = self._dealing.asyncOp = False

    def connect(self) -> None:
        """Raises DeviceError if NCCL cannot connect these devices."""
        path = str(Path(self._place.folder) / STORE)
        store = self._store or FileStore(path, self._place.ranks)
        try:
            self._group = self._made(store)
            ones = torch.ones(1, device=self._place.device)
            count = int(self.all_reduce(ones))
        except (RuntimeError, ConnectionError) as error:
            raise DeviceError(
                f"NCCL does not connect rank {self._place.rank} on {self._place.device} to the "
                f"others: {str(error).strip()}",
                "NCCL_DEBUG=INFO says why. In a container, give it memory to share (--shm-size "
                "1g).",
            ) from error
        if count != self._place.ranks:
            raise ConnectionError("another rank has left")

    def _made(self, store: Any) -> Any:
        """Return torch's connections. Raises DeviceError if it has no NCCL."""
        if not torch.distributed.is_nccl_available():
            raise DeviceError(
                f"torch {torch.__version__} is built without NCCL, by which ranks on GPUs exchange",
                "Install a build of torch for CUDA (https://pytorch.org), or start with --device "
                "cpu.",
            )
        no_nccl_monitor()
        nccl: Any = torch.distributed.ProcessGroupNCCL  # its stubs lack what it takes
        options = nccl.Options()
        options._timeout = _LONGEST_STEP
        return nccl(store, self._place.rank, self._place.ranks, options)

    def _sum(self, x: Tensor) -> None:
        ranks, count = self._place.ranks, x.numel()
        if ranks == 2 or x.nbytes < SLICED_FROM:
            add_up(self._exchange(x), x)
            return
        each = -(-count // ranks)
        dealt_Rn = F.pad(x.flatten(), (0, each * ranks - count)).view(ranks, each)
        parts_Rn = torch.empty_like(dealt_Rn)
        self._move(lambda group: group.alltoall_base(parts_Rn, dealt_Rn, [], [], self._dealing))
        own_n = torch.empty_like(parts_Rn[0])
        add_up(parts_Rn.unbind(), own_n)
        x.copy_(self._gathered(own_n)[:count].view_as(x))

    def _exchange(self, x: Tensor) -> Sequence[Tensor]:
        return self._gathered(x).view(self._place.ranks, *x.shape).unbind()

    def _gathered(self, x: Tensor) -> Tensor:
        """Return the elements of all ranks' contiguous tensors, of one shape and type."""
        whole_N = x.new_empty(self._place.ranks * x.numel())
        self._move(lambda group: group._allgather_base(whole_N, x.view(-1), self._gathering))
        return whole_N

    def _move(self, begin: Callable[[Any], Any]) -> None:
        """Exchange parts, before what the stream does next."""
        if (group := self._group) is None:
            raise ConnectionError("this rank has left the others")
        try:
            if (work := begin(group)) is not None:  # else the stream already waits
                work.wait()
        except RuntimeError as error:
            if self._group is None:
                raise ConnectionError("this rank has left the others") from error
            raise  # its own: of its device, or why a step cannot be captured

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            leaving = threading.Thread(target=_leave, args=(group,), daemon=True)
            leaving.start()
            leaving.join(_LEAVING_SECONDS)


def _leave(group: Any) -> None:
    with suppress(RuntimeError):  # as it was never connected, or another has left
        group.abort()
