"""How ranks of several machines find each other for gloo: through the connections that they have,
which a token guards, instead of a store with a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from inferno.process.ranks import messages

_Base: Any = Store
"""Whose methods gloo calls."""


class Meeting(_Base):  # type: ignore[misc]  # torch's class has no types
    """One rank's view of what all have told (`torch.distributed.Store`)."""

    def __init__(self, say: Callable[[bytes, bytes], None], listen: Callable[[], object]) -> None:
        """`say(kind, body)` sends a message to the others; `listen()` waits a moment for theirs,
        which `take` is given, and raises if the group ends."""
        super().__init__()
        self._say, self._listen = say, listen
        self._told = dict[str, bytes]()

    def take(self, body: bytes) -> None:
        """Take what another rank has told."""
        key, value = messages.decode_meet(body)
        self._told[key] = value

    def set(self, key: str, value: bytes) -> None:
        self._told[key] = bytes(value)
        self._say(messages.MEET, messages.encode((key, bytes(value))))

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._told for key in keys)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._told[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        while not self.check(keys):
            self._listen()
