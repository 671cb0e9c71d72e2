"""The client's end of the socket to an engine process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq
from attrs import define


@define(eq=False)
class Connection:
    """Sends messages to one engine process, and calls `take(kind, body)` for each that it sends.

    libzmq's descriptor is edge-triggered: any operation on the socket may consume the notification
    of a message, so every use ends with a check for messages.
    """

    socket: zmq.Socket[bytes]
    take: Callable[[bytes, bytes], None]

    @classmethod
    def bind(
        cls,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        take: Callable[[bytes, bytes], None],
    ) -> Connection:
        """Listen at `endpoint`, in the running event loop."""
        socket = context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        connection = cls(socket, take)
        asyncio.get_running_loop().add_reader(socket.fileno(), connection.receive)
        return connection

    @property
    def closed(self) -> bool:
        return self.socket.closed

    def send(self, kind: bytes, body: bytes) -> None:
        """Send a message. It is lost if the process has ended, which `Supervisor` reports."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([kind, body], zmq.NOBLOCK)
        asyncio.get_running_loop().call_soon(self.receive)

    def receive(self) -> None:
        """Take all messages that have arrived."""
        while not self.socket.closed:
            try:
                kind, body = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.take(kind, body)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.socket.fileno())
        self.socket.close()
