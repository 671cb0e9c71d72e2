"""Slows down those who try API keys: each address may send so many wrong ones a minute."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict

from attrs import define, field

from inferno.errors import LimitError
from inferno.server.access.limits import Bucket, Clock

TRIES = 30
"""Wrong keys a minute. At that rate a key of 24 random bytes takes longer than the sun lasts, and a
client that was started with an old key goes on to be told so."""
_MOST_ADDRESSES = 10_000


@define(eq=False)
class Guesses:
    """Keys that were wrong, by address. Without an address, as on a Unix socket, none count."""

    clock: Clock = time.monotonic
    refused: int = 0
    """Requests that were not looked at because of those before them."""
    wrong: int = 0
    _left: OrderedDict[str, Bucket] = field(factory=OrderedDict)

    def check(self, address: str) -> None:
        """Raise LimitError if an address has no tries left: then not even a right key is told."""
        bucket = self._left.get(_network(address))
        if bucket is None or not (wait := bucket.seconds_until(1)):
            return
        self.refused += 1
        error = LimitError(
            "too many wrong API keys came from your address",
            f"Send the request again in {math.ceil(wait)} s, with the right key.",
        )
        error.headers = {"Retry-After": str(max(1, math.ceil(wait)))}
        raise error

    def failed(self, address: str) -> None:
        """Count a wrong key."""
        self.wrong += 1
        if not address:
            return
        name = _network(address)
        bucket = self._left.setdefault(name, Bucket(TRIES, self.clock))
        self._left.move_to_end(name)
        bucket.take(1)
        if len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)


def _network(address: str) -> str:
    """Return whose address it is: a client has all of an IPv6 network of 64 bits."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
