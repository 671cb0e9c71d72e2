"""Messages between ranks: a socket, local or TCP, whose system calls wake the one that waits.
Through the threads of a messaging library a step took 150 to 200 us to arrive."""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from pathlib import Path
from select import POLLIN, poll
from typing import Self

Message = tuple[bytes, bytes]
"""Kind, one byte, and body."""

_HEAD = struct.Struct("<cI")
_MOST = 1 << 16
"""Bytes that are read at once."""
LONGEST = 1 << 28
"""Bytes of a message: no plan and no step is longer."""


def listener(path: Path, most: int) -> socket.socket:
    """Return a socket to which so many others can connect at once."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(most)
    return listening


class Wire:
    """One end of a connection, for one thread. Raises EOFError where the other end is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._messages = deque[Message]()

    @classmethod
    def to(cls, path: Path) -> Self:
        """Connect to a listener. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        return cls(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message, and wait until the system has taken all of it."""
        self._socket.settimeout(None)
        try:
            self._socket.sendall(_HEAD.pack(kind, len(body)) + body)
        except ConnectionError as error:
            raise EOFError("the other end is closed") from error

    def receive(self, seconds: float, beside: int | None = None) -> Message | None:
        """Return the next message, or None if nothing arrives for so long, or if the descriptor
        `beside` becomes readable before. A message that is longer than any of ours is taken for the
        end."""
        while not self._messages:
            if beside is not None and not self._is_first(beside, seconds):
                return None
            self._socket.settimeout(seconds)
            try:
                received = self._socket.recv(_MOST)
            except (TimeoutError, BlockingIOError):
                return None
            except ConnectionError:
                received = b""
            if not received:
                raise EOFError("the other end is closed")
            self._buffer += received
            self._split()
        return self._messages.popleft()

    def _is_first(self, beside: int, seconds: float) -> bool:
        """Wait for either of two descriptors. Returns whether it is this one that has something."""
        poller = poll()  # as `select` refuses descriptors above 1023
        for descriptor in (self.fileno(), beside):
            poller.register(descriptor, POLLIN)
        return any(ready == self.fileno() for ready, _ in poller.poll(1000 * seconds))

    def _split(self) -> None:
        """Take whole messages from what was received."""
        start = 0
        while len(self._buffer) - start >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._buffer, start)
            if size > LONGEST:
                raise EOFError(f"the other end announces {size} bytes")
            body = start + _HEAD.size
            if len(self._buffer) - body < size:
                break
            start = body + size
            self._messages.append((kind, bytes(self._buffer[body:start])))
        del self._buffer[:start]

    def hang_up(self) -> None:
        """Let a `send` that waits fail, and every later one. Any thread may call it. What the other
        end has sent can still be received."""
        with suppress(OSError):  # it is closed
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
