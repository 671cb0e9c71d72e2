"""Addresses of this machine."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from inferno.errors import OptionError

_SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address."""


def address_of(host: str) -> str:
    """Return the IP address of a host's name, of a network interface, or of itself. Raises
    OptionError."""
    if host in {name for _, name in socket.if_nameindex()}:
        return _of_interface(host)
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise OptionError(
            f"{host!r} is neither an address nor a network interface of this machine",
            f"Interfaces: {', '.join(name for _, name in socket.if_nameindex())}.",
        ) from error


def _of_interface(name: str) -> str:
    with suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        import fcntl

        request = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_.fileno(), _SIOCGIFADDR, request)[20:24])
    raise OptionError(
        f"the network interface {name} has no IPv4 address", "Name an address instead."
    )
