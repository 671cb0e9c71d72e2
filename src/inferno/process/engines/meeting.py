"""How engines that share experts meet. Each start of all engines makes a new group, with a folder
of its own, so that nothing of an earlier start is in the way."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from inferno.errors import EngineDeadError, SystemLimitError
from inferno.process.ranks.wire import listener

CURRENT = "current"
"""The file in the engines' folder that names the folder of the latest group."""
STARTED_ANEW = "All of them are started anew: send the request again in a moment."
"""What to do about an error of one of them."""
_GROUP = "group-"
_LOOK = 0.05
"""Seconds between two looks for what is not there yet."""
_WHO = struct.Struct("<I")
"""An engine's number, which it sends first on each connection that it opens."""
_GO = b"g"
"""What the first engine sends once all have come."""


def meet(
    folder: Path,
    engine: int,
    engines: int,
    wanted: Callable[[], bool],
    begin: Callable[[Path], None],
) -> Mapping[int, socket.socket]:
    """Wait until all engines have come, and return the connections to the others, by their numbers.
    Engine 0 makes the group, and calls `begin` with the group's folder before the others can find
    it; these call `begin` once all have come.

    If an engine ends meanwhile, engine 0 raises EngineDeadError, and the others wait for the group
    of the next engine 0. Also raises EngineDeadError if this engine is no longer `wanted`,
    and SystemLimitError if the folder cannot be used."""
    while True:
        _check(wanted)
        with ExitStack() as undo:
            try:
                peers = _met(folder, engine, engines, wanted, begin, undo)
            except (EOFError, OSError) as error:
                if engine:  # of a group whose first engine has ended, or is about to say why
                    continue
                if isinstance(error, EOFError | ConnectionError):
                    raise EngineDeadError(
                        "another engine has ended while they met",
                        STARTED_ANEW,
                    ) from None
                raise SystemLimitError(
                    f"engines cannot meet in {folder}: {error}",
                    "Set TMPDIR to a folder with a short name and room for files, and start again.",
                ) from error
            undo.pop_all()
            return peers


def _met(
    folder: Path,
    engine: int,
    engines: int,
    wanted: Callable[[], bool],
    begin: Callable[[Path], None],
    undo: ExitStack,
) -> dict[int, socket.socket]:
    group = _opened(folder) if engine == 0 else None
    peers = dict[int, socket.socket]()
    if group is not None:
        begin(group)
    else:
        group, peers[0] = _joined(folder, wanted, undo)
    with listener(group / str(engine), engines) as listening:
        if engine == 0:
            named = folder / f"{CURRENT}.new"
            named.write_text(group.name)
            os.replace(named, folder / CURRENT)
            _accept(listening, peers, engines - 1, wanted, undo)
            for peer in peers.values():
                peer.sendall(_GO)
            return peers
        peers[0].sendall(_WHO.pack(engine))
        if _received(peers[0], len(_GO), wanted) != _GO:
            raise EOFError
        for other in range(1, engine):
            peers[other] = undo.enter_context(socket.socket(socket.AF_UNIX))
            peers[other].connect(str(group / str(other)))
            peers[other].sendall(_WHO.pack(engine))
        _accept(listening, peers, engines - 1, wanted, undo)
    begin(group)
    return peers


def _opened(folder: Path) -> Path:
    """Make a folder for a new group, and remove those of earlier ones."""
    for old in folder.glob(f"{_GROUP}*"):
        shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_GROUP, dir=folder))


def _joined(
    folder: Path, wanted: Callable[[], bool], undo: ExitStack
) -> tuple[Path, socket.socket]:
    """Connect to the first engine, once it listens."""
    while True:
        _check(wanted)
        with suppress(OSError):
            group = folder / (folder / CURRENT).read_text()
            with _unless_raised(socket.socket(socket.AF_UNIX)) as first:
                first.connect(str(group / "0"))
            return group, undo.enter_context(first)
        time.sleep(_LOOK)


@contextmanager
def _unless_raised(opened: socket.socket) -> Iterator[socket.socket]:
    try:
        yield opened
    except BaseException:
        opened.close()
        raise


def _accept(
    listening: socket.socket,
    peers: dict[int, socket.socket],
    count: int,
    wanted: Callable[[], bool],
    undo: ExitStack,
) -> None:
    """Take connections until there are `count` peers. Raises EOFError if one of them ends."""
    with selectors.DefaultSelector() as heard:
        heard.register(listening, selectors.EVENT_READ)
        for peer in peers.values():
            heard.register(peer, selectors.EVENT_READ)
        while len(peers) < count:
            _check(wanted)
            for key, _ in heard.select(_LOOK):
                if key.fileobj is not listening:  # a peer that says nothing yet: it has ended
                    raise EOFError
                peer = undo.enter_context(listening.accept()[0])
                [who] = _WHO.unpack(_received(peer, _WHO.size, wanted))
                peers[who] = peer
                heard.register(peer, selectors.EVENT_READ)


def _received(peer: socket.socket, size: int, wanted: Callable[[], bool]) -> bytes:
    """Return `size` bytes. Raises EOFError if the peer ends before it has sent them."""
    received = b""
    peer.settimeout(_LOOK)
    while len(received) < size:
        _check(wanted)
        with suppress(TimeoutError):
            if not (more := peer.recv(size - len(received))):
                raise EOFError
            received += more
    return received


def _check(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise EngineDeadError("whoever wanted this engine has ended", "Start it anew.")
