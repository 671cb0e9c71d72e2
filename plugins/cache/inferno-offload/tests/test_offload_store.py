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
        store.files._writer.shutdown(wait=True, cancel_futures=True)
        store.files._readers.shutdown(wait=True, cancel_futures=True)
        for descriptor in (store.files.folder._lock, store.files.descriptor, store.files._signal):
            os.close(descriptor)


class TestHost(StoreTests):
    store = "offload"
    keeps_files = False
