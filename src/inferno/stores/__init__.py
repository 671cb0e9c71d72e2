"""Stores of blocks: what the scheduler asks of one, and how it is opened for a plan."""

from inferno.stores.opening import open_presence, open_store
from inferno.stores.presence import NO_PRESENCE, NoPresence
from inferno.stores.storing import NO_STORE, NoStore

__all__ = ["NO_PRESENCE", "NO_STORE", "NoPresence", "NoStore", "open_presence", "open_store"]
