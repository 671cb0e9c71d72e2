"""Stores of blocks: what the scheduler asks of one, and how it is opened for a plan."""

from inferno.stores.no_store import NO_STORE, AsleepStore, NoStore, unless_failed
from inferno.stores.opening import open_prefix, open_presence, open_store
from inferno.stores.presence import NO_PRESENCE, NoPresence
from inferno.stores.sessions import NoSessions

__all__ = [
    "NO_PRESENCE",
    "NO_STORE",
    "AsleepStore",
    "NoPresence",
    "NoSessions",
    "NoStore",
    "open_prefix",
    "open_presence",
    "open_store",
    "unless_failed",
]
