"""Stores of blocks: what the scheduler asks of one, and how it is opened for a plan."""

from inferno.stores.opening import open_prefix, open_presence, open_store
from inferno.stores.presence import NO_PRESENCE, NoPresence
from inferno.stores.sessions import NoSessions
from inferno.stores.storing import NO_STORE, NoStore

__all__ = [
    "NO_PRESENCE",
    "NO_STORE",
    "NoPresence",
    "NoSessions",
    "NoStore",
    "open_prefix",
    "open_presence",
    "open_store",
]
