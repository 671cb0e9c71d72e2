"""Stores of blocks: what the scheduler asks of one, and how it is opened for a plan."""

from inferno.stores.opening import open_store
from inferno.stores.storing import NO_STORE, NoStore

__all__ = ["NO_STORE", "NoStore", "open_store"]
