"""What ranks of a pipeline pass each other on one machine without its network: sockets with a file
in their folder. For ranks in a sandbox, which have no other."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Full, Queue
from select import POLLIN, poll
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from inferno.contracts import RankPlace
from inferno.process.ranks.exchange import LOOK, LOOPBACK
from inferno.process.ranks.wire import listener

_RANK = struct.Struct("<I")
_LEFT = "another rank has left or is not heard"


@define(eq=False)
class _Peer:
    """A connection to another rank, and the thread that sends what is to go there: who sends does
    not wait for the other one to read."""

    connection: socket.socket
    most: int
    """Tensors that may wait."""
    _waiting: Queue[bytes] = field(init=False)
    _failed: bool = False

    def __attrs_post_init__(self) -> None:
        self._waiting = Queue(self.most)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            body = self._waiting.get()
            try:
                self.connection.sendall(body)
            except OSError:
                self._failed = True
            self._waiting.task_done()
            if self._failed:
                return

    def put(self, body: bytes) -> bool:
        """Have bytes sent. Returns False if too much waits for now. Raises ConnectionError."""
        self._check()
        try:
            self._waiting.put(body, timeout=LOOK.total_seconds())
        except Full:
            return False
        return True

    @property
    def is_idle(self) -> bool:
        """Whether all has been sent. Raises ConnectionError."""
        self._check()
        return not self._waiting.unfinished_tasks

    def _check(self) -> None:
        if self._failed:
            raise ConnectionError(_LEFT)

    def close(self) -> None:
        with suppress(OSError):  # wakes threads that read or write
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self._failed = True
        with suppress(Empty):  # the thread may wait for something to send
            self._waiting.get_nowait()
        with suppress(Full):
            self._waiting.put_nowait(b"\0")


class SocketLink:
    """A `Link` by sockets with a file."""

    def __init__(self, place: RankPlace, host: str = LOOPBACK, store: Any = None) -> None:
        """`host` and `store` are of links over a network, and not used."""
        self._place, self._closed = place, False
        self._listener = listener(self._path(place.rank), place.ranks)
        self._peers: dict[int, _Peer] = {}

    def _path(self, rank: int) -> Path:
        return Path(self._place.folder) / f"link {rank}"

    def connect(self) -> None:
        with self._listener:
            until = time.monotonic() + self._place.seconds
            for rank in range(self._place.rank):
                connection = self._reached(rank, until)
                connection.sendall(_RANK.pack(self._place.rank))
                self._add(rank, connection)
            for _ in range(self._place.rank + 1, self._place.ranks):
                with self._told():
                    self._listener.settimeout(max(0.0, until - time.monotonic()))
                    connection, _ = self._listener.accept()
                connection.setblocking(True)
                [rank] = _RANK.unpack(connection.recv(_RANK.size, socket.MSG_WAITALL))
                self._add(rank, connection)

    def _add(self, rank: int, connection: socket.socket) -> None:
        self._peers[rank] = _Peer(connection, self._place.stages)
        if self._closed:  # meanwhile
            self.close()

    def _reached(self, rank: int, until: float) -> socket.socket:
        """Connect to a rank, which may not listen yet."""
        while True:
            self._check()
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._path(rank)))
                return connection
            except OSError as error:
                connection.close()
                if time.monotonic() > until:
                    raise ConnectionError(f"{_LEFT}: rank {rank}") from error
            time.sleep(0.02)

    def send(self, x: Tensor, to: int) -> None:
        body = x.view(torch.uint8).numpy().tobytes()
        until = time.monotonic() + self._place.seconds
        with self._told():
            while not self._peers[to].put(body):
                self._check(until)

    def receive(self, x: Tensor, source: int) -> None:
        connection = self._peers[source].connection
        array: Any = x.view(torch.uint8).numpy()
        into = memoryview(array).cast("B")
        until = time.monotonic() + self._place.seconds
        with self._told():
            poller = poll()  # as `select` refuses descriptors above 1023
            poller.register(connection, POLLIN)
            while into:
                if not poller.poll(1000 * LOOK.total_seconds()):
                    self._check(until)
                    continue
                count = connection.recv_into(into)
                if not count:
                    raise ConnectionError(_LEFT)
                into = into[count:]

    def flush(self) -> None:
        """The system keeps what it has taken, also for a rank that reads it later."""
        with self._told():
            while not all(peer.is_idle for peer in self._peers.values()):
                self._check()
                time.sleep(0.001)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context in which what a connection ends with is told as of a `Link`."""
        try:
            self._check()
            yield
        except (OSError, ValueError) as error:  # ValueError: this rank has closed it
            self._check()
            raise ConnectionError(str(error) or _LEFT) from error

    def _check(self, until: float | None = None) -> None:
        if self._closed:
            raise ConnectionError("this rank has left the others")
        if until is not None and time.monotonic() > until:
            raise ConnectionError(_LEFT)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        for peer in [*self._peers.values()]:
            peer.close()
