"""How a rank's process reaches rank 0: by a local socket in its folder, or over TCP if its folder
has a file that says where."""

from __future__ import annotations

from pathlib import Path

import msgspec
from attrs import frozen

from inferno.process.ranks import messages
from inferno.process.ranks.greeting import connect
from inferno.process.ranks.wire import Wire

STEPS, FIRST, TOKEN = "steps", "first.json", "token"
"""Files in a rank's folder: the socket of a rank 0 on this machine; or where another machine's is,
and the secret that both know."""


@frozen(kw_only=True)
class First:
    """Where a rank 0 on another machine is."""

    host: str
    port: int
    group: str
    """Its ranks' (`messages.Welcome.group`)."""
    own_host: str
    """This machine's address or network interface, by which others reach its ranks."""
    folder: str = ""
    """Where the ranks meet if they are on one machine; empty: they are on several."""


def write_first(folder: Path, first: First, token: bytes) -> None:
    """Write what `first_of` and `reach` read into a rank's folder, which is private."""
    (folder / FIRST).write_bytes(msgspec.json.encode(first))
    (folder / TOKEN).write_bytes(token)


def first_of(folder: Path) -> First | None:
    """Return where rank 0 is, if it is elsewhere."""
    try:
        return msgspec.json.decode((folder / FIRST).read_bytes(), type=First)
    except FileNotFoundError:
        return None


def reach(folder: Path, rank: int, first: First | None) -> Wire:
    """Connect to rank 0. Raises OSError, EOFError, OptionError."""
    if first is None:
        return Wire.to(folder / STEPS)
    wire = Wire(connect(first.host, first.port, (folder / TOKEN).read_bytes()))
    wire.send(messages.RANK, messages.encode(messages.ArrivingRank(first.group, rank)))
    return wire
