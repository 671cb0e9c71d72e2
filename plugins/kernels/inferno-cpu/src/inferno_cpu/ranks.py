"""Collectives of the ranks of one machine, in memory that they share (`contracts.Communicator`).

Rank 0 makes the memory and passes its descriptor to the others over a socket in the ranks' folder.
It has no name: it is gone with the last process that has it, however that ends.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

from inferno.contracts import RankPlace
from inferno.ops.collectives import Operators
from inferno_cpu import _native
from inferno_cpu.dtypes import DTYPES

SLOT = 256 << 10
"""Bytes that a rank gives the others at once: its part and theirs stay in a core's cache."""
NAME = "memory"
"""The socket's, in the ranks' folder."""


def mapped(descriptor: int, ranks: int) -> tuple[mmap, int]:
    """Map the memory of so many ranks, and close its descriptor. Returns its address too."""
    try:
        memory = mmap(descriptor, _native.Ranks.bytes(ranks, SLOT))
    finally:
        os.close(descriptor)
    return memory, torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


class SharedMemory:
    """One rank's part in the memory."""

    def __init__(self, place: RankPlace) -> None:
        self._place = place
        self._ranks: _native.Ranks | None = None
        self._left = threading.Event()
        self._operators = Operators(self._sum, self._gather)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(0.1)
        if place.rank == 0:
            self._socket.bind(str(Path(place.folder) / NAME))
            self._socket.listen(place.ranks)

    def connect(self) -> None:
        place = self._place
        with self._socket:
            descriptor = self._deal_out() if place.rank == 0 else self._receive()
            self._memory, address = mapped(descriptor, place.ranks)
        self._ranks = _native.Ranks(address, place.rank, place.ranks, SLOT, place.seconds)
        if self._left.is_set():
            self._ranks.close()

    def _deal_out(self) -> int:
        """Make the memory, and give it to the others."""
        memory = os.memfd_create("inferno_ranks")
        try:
            os.ftruncate(memory, _native.Ranks.bytes(self._place.ranks, SLOT))
            until = time.monotonic() + self._place.seconds
            for _ in range(self._place.ranks - 1):
                while (given := self._accepted()) is None:
                    self._check(until)
                with given:
                    socket.send_fds(given, [b"m"], [memory])
        except BaseException:
            os.close(memory)
            raise
        return memory

    def _accepted(self) -> socket.socket | None:
        try:
            return self._socket.accept()[0]
        except TimeoutError:
            return None

    def _receive(self) -> int:
        self._socket.connect(str(Path(self._place.folder) / NAME))
        until = time.monotonic() + self._place.seconds
        while True:
            try:
                _, descriptors, *_ = socket.recv_fds(self._socket, 1, 1)
            except TimeoutError:
                self._check(until)
                continue
            if not descriptors:
                raise ConnectionError("rank 0 has left")
            return descriptors[0]

    def _check(self, until: float) -> None:
        if self._left.is_set():
            raise ConnectionError("another rank has left")
        if time.monotonic() > until:
            raise TimeoutError("the other ranks have not connected")

    def all_reduce(self, x: Tensor) -> Tensor:
        if not _native.recording():
            return self._operators.all_reduce(x)
        x = x.contiguous()
        self._sum(x)
        return x

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        if not _native.recording():
            return self._operators.all_gather(x, widths)
        return self._gather(x, widths)

    def _sum(self, x: Tensor) -> None:
        assert self._ranks is not None, "ranks meet before the first step"
        self._ranks.sum(DTYPES[x.dtype], x.data_ptr(), x.numel())

    def _gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        assert self._ranks is not None, "ranks meet before the first step"
        x = x.contiguous()
        *others, _ = x.shape
        whole = torch.empty((*others, sum(widths)), dtype=x.dtype)
        bytes_of_rows = [width * x.element_size() for width in widths]
        self._ranks.gather(x.data_ptr(), whole.data_ptr(), math.prod(others), bytes_of_rows)
        return whole

    def close(self) -> None:
        self._left.set()
        if self._ranks is not None:
            self._ranks.close()
