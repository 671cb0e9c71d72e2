"""Messages between ranks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferno.process.ranks.wire import Wire, listener

Ends = tuple[Wire, Wire]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with listener(tmp_path / "wire", 1) as listening:
        ours = Wire.to(tmp_path / "wire")
        theirs = Wire(listening.accept()[0])
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_of_all_sizes_arrive_whole_and_in_order(ends: Ends) -> None:
    """More than the system holds: the sender waits for the reader."""
    ours, theirs = ends
    bodies = [b"", b"a", *(bytes([i]) * size for i, size in enumerate((7, 65_536, 3_000_000, 1)))]

    def send() -> None:
        for body in bodies:
            ours.send(b"x", body)

    sending = threading.Thread(target=send)
    sending.start()
    assert [theirs.receive(30) for _ in bodies] == [(b"x", body) for body in bodies]
    sending.join()
    theirs.send(b"y", b"back")
    assert ours.receive(30) == (b"y", b"back")


def test_a_message_that_comes_in_pieces_is_one(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    wire = Wire(one)
    for piece in (b"S\5\0", b"\0\0he", b"llo"):
        assert wire.receive(0.0) is None
        other.sendall(piece)
    assert wire.receive(5) == (b"S", b"hello") and wire.receive(0.0) is None
    wire.close()
    other.close()


def test_whoever_waits_is_told_that_nothing_comes(ends: Ends) -> None:
    ours, theirs = ends
    begun = time.monotonic()
    assert ours.receive(0.1) is None and time.monotonic() - begun >= 0.1
    theirs.send(b"z", b"last")
    theirs.close()
    assert ours.receive(5) == (b"z", b"last"), "what was said before is not lost"
    with pytest.raises(EOFError):
        ours.receive(5)
    with pytest.raises(EOFError):
        while True:
            ours.send(b"z", b"nobody")
