"""The contract of stores, with files and without."""

from __future__ import annotations

import os

from inferno.contracts import Mover, StoreIndex
from inferno.testing import StoreTests
from inferno_offload.store import Store


class TestDisk(StoreTests):
    store = "offload"

    @staticmethod
    def abandon(built: tuple[StoreIndex, Mover]) -> None:
        store = built[1]
        assert isinstance(store, Store) and store.files is not None
        store.files._work.clear()
        store.files.close()
        assert store._folder is not None
        store._folder.parts.close()
        os.close(store._folder._lock)


class TestHost(StoreTests):
    store = "offload"
    keeps_files = False
