"""Where a prefill instance listens, and the secret by which the two ends know each other."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

from inferno.contracts import Link, StoreNeed
from inferno.errors import OptionError

MOST_TOKEN = 4096
LEAST_TOKEN = 16
_FORMS = "shm://NAME, file:///PATH, tcp://HOST:PORT or nixl://HOST:PORT"


@frozen
class Address:
    """An address as zmq has it."""

    endpoint: str
    path: Path | None
    """The socket on this machine; None: it is on the network."""
    pulls: bool = False
    """Whether blocks are read through nixl."""


def parse(url: str) -> Address:
    """Return the address that a URL names. Raises OptionError.

    `shm://NAME` is a socket in a folder of the user's own, `file:///PATH` one at a path (and so is
    `ipc:///PATH`): both ends are on one machine then, and share memory. `tcp://HOST:PORT` (or
    `http://`) is on the network; with `nixl://HOST:PORT` only messages go that way, and blocks are
    read through nixl.
    """
    scheme, _, rest = url.partition("://")
    if scheme in ("tcp", "http", "nixl"):
        host, _, port = rest.rstrip("/").rpartition(":")
        known = re.fullmatch(r"\*|[\w.-]+|\[[0-9a-fA-F:.]+\]", host) and port.isascii()
        if known and port.isdigit() and 0 < int(port) < 65536:
            return Address(f"tcp://{host}:{port}", None, scheme == "nixl")
    elif scheme == "shm" and re.fullmatch(r"[\w.-]{1,40}", rest):
        path = Path(tempfile.gettempdir(), f"inferno-{os.getuid()}", f"{rest}.socket")
        return Address(f"ipc://{path}", path)
    elif scheme in ("file", "ipc") and rest.startswith("/") and len(os.fsencode(rest)) <= 100:
        return Address(f"ipc://{rest}", Path(rest))
    raise OptionError(f"{url!r} is no address of a prefill instance", f"Write {_FORMS}.")


def parse_all(url: str) -> dict[str, Address]:
    """Return the addresses that a URL names, by their URLs: `tcp://HOST+HOST:PORT` has the hosts of
    an instance whose ranks are on several machines. Raises OptionError."""
    scheme, _, rest = url.partition("://")
    hosts, _, port = rest.rpartition(":")
    urls = [f"{scheme}://{host}:{port}" for host in hosts.split("+")] if "+" in hosts else [url]
    return {each: parse(each) for each in urls}


def own_of(addresses: Mapping[str, Address]) -> Address:
    """Return the address that this machine listens on: the only one, or the one whose host it is.
    Raises OptionError."""
    for url, address in addresses.items():
        if len(addresses) == 1 or _is_own(url.partition("://")[2].rpartition(":")[0]):
            return address
    raise OptionError(
        f"{' and '.join(addresses)} are all addresses of other machines",
        "Name this machine's host too: tcp://HOST+HOST:PORT.",
    )


def _is_own(host: str) -> bool:
    """Whether a name or an address is this machine's: it may have several, IPv6 first."""
    try:
        known = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in known:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def refuses(need: StoreNeed) -> str | None:
    """Say why a link cannot be opened, or None."""
    if need.link is None:
        return "it links instances, and keeps no blocks"
    try:
        urls = need.link.url, *need.link.others
        addresses = [address for url in urls for address in parse_all(url).values()]
        for address in addresses:
            token_of(need.link, address)
    except OptionError as error:
        return f"{error.cause}: {error.remedy.rstrip('.')}"
    if any(address.pulls for address in addresses) and nixl_package() is None:
        return "nixl is not installed: pip install 'inferno-disaggregated[nixl]'"
    return None


def nixl_package() -> str | None:
    """Return the package that has nixl, if one is installed."""
    names = ("nixl", "nixl_cu13", "nixl_cu12")
    return next((name for name in names if find_spec(name) is not None), None)


def token_of(link: Link, address: Address) -> bytes:
    """Return the secret of both ends; empty where the socket's folder is secret enough. Raises
    OptionError."""
    file = link.token_file
    if file is None:
        if address.path is None:
            raise OptionError(
                f"{link.url} can be reached by others, and there is no token",
                "Write one (openssl rand -hex 32 > FILE), copy it to both machines, and name it: "
                "--pd-token-file FILE.",
            )
        return b""
    try:
        with file.open("rb") as stream:
            if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
                raise OptionError(f"others may read {file}", f"chmod 600 {file}")
            token = stream.read(MOST_TOKEN + 1).strip()
    except OSError as error:
        raise OptionError(
            f"--pd-token-file {file}: {error.strerror or error}", "Name a file that can be read."
        ) from error
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise OptionError(
            f"the token in {file} has {len(token)} bytes",
            f"It needs {LEAST_TOKEN} to {MOST_TOKEN}: openssl rand -hex 32 > {file}",
        )
    return token


def own_folder(path: Path) -> None:
    """Make the folder of a socket, for this user only. Raises OptionError if it is another's."""
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise OptionError(
            f"{folder}: {error.strerror or error}", "Name a socket elsewhere: file:///PATH."
        ) from error
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not own or status.st_mode & 0o022:
        raise OptionError(
            f"others may write to {folder}, where the socket is to be",
            "Name one in a folder of your own: file:///PATH.",
        )
