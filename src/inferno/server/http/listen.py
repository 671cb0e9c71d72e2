"""The socket that a server listens on: TCP or Unix, and its TLS certificate."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from inferno.errors import AddressError, OptionError

log = logging.getLogger("inferno.server")
_MOST_PATH = 103
"""Bytes of a Unix socket's path on every system."""
UDS_MODE = 0o600
"""Permissions of a Unix socket: only this user."""


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the address for people: `http://127.0.0.1:8000`, `unix:/run/inferno.sock`."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    scheme = "https" if tls else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def listening(host: str, port: int, uds: Path | None, mode: int) -> Iterator[socket.socket]:
    """Bind an address or, if given, the Unix socket `uds` with permissions `mode`. The socket's
    file is removed at the end. Raises AddressError."""
    if uds is None:
        with contextlib.closing(_bind(host, port)) as listener:
            yield listener
        return
    with contextlib.closing(_bind_unix(uds, mode)) as listener:
        inode = uds.stat().st_ino
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if uds.stat().st_ino == inode:  # not another server's by now
                    uds.unlink()


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Raise OptionError unless the files are a certificate and its private key, or not given."""
    if certfile is None:
        if keyfile is not None:
            raise OptionError("--ssl-keyfile is set without --ssl-certfile", "Give both.")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password="")
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"cannot use the certificate {certfile} with the key {keyfile or certfile}: {error}",
            "Give PEM files of a certificate and its unencrypted private key.",
        ) from error
    if os.stat(key := keyfile or certfile).st_mode & 0o044:
        log.warning("other users can read the private key in %s: chmod 600 %s", key, key)


def _bind_unix(path: Path, mode: int) -> socket.socket:
    """Listen on a Unix socket. A file that a dead server left is replaced."""
    if len(os.fsencode(path)) > _MOST_PATH:
        raise AddressError(
            f"the path {str(path)[:80]}... is too long for a Unix socket",
            f"Give one of at most {_MOST_PATH} bytes: --uds PATH.",
        )
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise AddressError(f"{path} is a file", "Give a path that does not exist: --uds PATH.")
    if path.exists() and _answers(path):
        raise AddressError(
            f"another server listens on {path}", "Stop it, or give another path: --uds PATH."
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~mode)  # no moment with other permissions
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(mode)
    except OSError as error:
        listener.close()
        raise AddressError(
            f"cannot listen on {path}: {error}", "Give a path in a folder of yours: --uds PATH."
        ) from error
    finally:
        os.umask(mask)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _bind(host: str, port: int) -> socket.socket:
    """Bind the address before the model is loaded, to fail early if the port is in use. Raises
    AddressError."""
    if not 0 <= port <= 65535:
        raise AddressError(
            f"invalid port {port} for {host}", "Give a port from 0 to 65535; 0 picks a free one."
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressError(
            f"cannot listen on {host}:{port}: {error}",
            "Give a host name or an address of this machine.",
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressError(*_explain(host, port, error)) from error
    return listener


def _explain(host: str, port: int, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use",
            "Stop the process that uses it, or choose another: --port 0 picks a free one.",
        )
    if error.errno == errno.EACCES:
        return (
            f"port {port} needs privileges that this process lacks",
            "Give a port above 1023: --port 8000",
        )
    return (
        f"cannot listen on {host}:{port}: {error}",
        "Give an address of this machine: --host 127.0.0.1",
    )
