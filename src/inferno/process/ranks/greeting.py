"""How two processes on two machines greet each other over TCP: each proves that it knows the token,
without sending it. Until then nothing is decoded, and all that is read has a fixed size.

listening -> joining   MAGIC, a nonce
joining -> listening   MAGIC, a nonce, its proof over both
listening -> joining   its own proof
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from inferno.errors import OptionError

MAGIC = b"inferno ranks 1\n"
"""What both ends begin with, and the version of what follows."""
SECONDS = 5.0
"""How long a greeting may take."""
_NONCE = 32
_JOINS, _LISTENS = b"joins", b"listens"
"""Whose proof it is, so that neither end can return the other's."""
_LEAST = 16
"""Letters of a token: fewer can be guessed."""


def read_token(file: str) -> bytes:
    """Return the secret in a file. Raises OptionError."""
    try:
        token = Path(file).read_bytes().strip()
    except OSError as error:
        raise OptionError(
            f"the token of the ranks cannot be read: {error}",
            "Copy the first machine's file there, or set INFERNO_RANK_TOKEN on all machines.",
        ) from error
    return checked(token, file)


def checked(token: bytes, where: str) -> bytes:
    """Return a token. Raises OptionError if it is too short to be secret."""
    if len(token) < _LEAST:
        raise OptionError(
            f"{where}: the token of the ranks has {len(token)} letters",
            f"It must have at least {_LEAST}: `openssl rand -hex 32`.",
        )
    return token


def make_token(file: str) -> None:
    """Write a secret to a file that only this user can read, unless it exists. Whoever else does so
    at the same time, all read the same one. Raises OptionError."""
    path = Path(file)
    try:
        if path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, prefix=".token") as new:  # of mode 0600
            new.write(secrets.token_hex(32) + "\n")
            new.flush()
            with suppress(FileExistsError):
                os.link(new.name, path)
    except OSError as error:
        raise OptionError(
            f"the token of the ranks cannot be written: {error}",
            "Name a file that has one: --rank-token-file FILE.",
        ) from error


def connect(host: str, port: int, token: bytes) -> socket.socket:
    """Connect to a machine that listens, and greet it. Raises OSError while it cannot be reached,
    and OptionError if it knows another token or is no inferno."""
    connection = socket.create_connection((host, port), timeout=SECONDS)
    try:
        _prove(connection, token, f"{host}:{port}")
    except BaseException:
        connection.close()
        raise
    return prepared(connection)


def _prove(connection: socket.socket, token: bytes, where: str) -> None:
    until = time.monotonic() + SECONDS
    theirs, ours = _read(connection, len(MAGIC) + _NONCE, until), secrets.token_bytes(_NONCE)
    if theirs[: len(MAGIC)] != MAGIC:
        raise OptionError(
            f"{where} is not where ranks of this version are joined",
            "Use the HOST:PORT that the first machine prints, and the same inferno on all.",
        )
    nonces = theirs[len(MAGIC) :] + ours
    connection.sendall(MAGIC + ours + _proof(token, _JOINS, nonces))
    wanted = _proof(token, _LISTENS, nonces)
    if not hmac.compare_digest(_read(connection, len(wanted), until), wanted):
        raise OptionError(
            f"{where} knows another token",
            "Copy the first machine's token file here (--rank-token-file FILE), or set "
            "INFERNO_RANK_TOKEN on all machines.",
        )


def admit(connection: socket.socket, token: bytes) -> bool:
    """Greet whoever has connected. Returns whether it knows the token. Raises OSError and EOFError
    if it says too little in time."""
    until, ours = time.monotonic() + SECONDS, secrets.token_bytes(_NONCE)
    connection.settimeout(SECONDS)
    connection.sendall(MAGIC + ours)
    length = len(MAGIC) + _NONCE + len(_proof(token, _JOINS, b""))
    greeting = _read(connection, length, until)
    nonces = ours + greeting[len(MAGIC) : len(MAGIC) + _NONCE]
    wanted = _proof(token, _JOINS, nonces)
    if not hmac.compare_digest(greeting[len(MAGIC) + _NONCE :], wanted):
        connection.sendall(bytes(len(wanted)))  # so that it is not taken for a lost connection
        return False
    connection.sendall(_proof(token, _LISTENS, nonces))
    prepared(connection)
    return True


def prepared(connection: socket.socket) -> socket.socket:
    """Send each message at once: a step waits for the one before it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _proof(token: bytes, whose: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, MAGIC + whose + nonces, "sha256")


def _read(connection: socket.socket, count: int, until: float) -> bytes:
    """Read exactly so many bytes. Raises EOFError, and TimeoutError if they do not come in time."""
    data = b""
    while len(data) < count:
        connection.settimeout(max(0.01, until - time.monotonic()))
        if time.monotonic() > until:
            raise TimeoutError("nothing comes")
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError("the other end is closed")
        data += piece
    return data


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[HOST]:PORT`. Raises OptionError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OptionError(
            f"{text!r} is not HOST:PORT", "Use the address that the first machine prints."
        )
    return host, int(port)


def address(host: str, port: int) -> str:
    """Return `HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
