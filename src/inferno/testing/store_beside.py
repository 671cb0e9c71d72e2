"""Tests of a store that reads the folders of others: what they have is found, read, and left
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import ClassVar

import pytest

from inferno.catalog import Catalog
from inferno.contracts import BlockStore, Placed, StoreNeed
from inferno.testing.block_store import KEYS, SIZES, Filled
from inferno.testing.installed import Installed

Open = Callable[..., Filled]


def until(holds: Callable[[], bool], *stores: Filled) -> None:
    """Wait until this holds, while the stores go on: one may still be writing."""
    end = monotonic() + 20
    while not holds():
        assert monotonic() < end, "it never sees what the other one has written"
        for store in stores:
            store.mover.poll()
        sleep(0.01)


def loaded(store: Filled, key: bytes, owner: str = "owner") -> tuple[list[int], list[int]] | None:
    """The bytes of both parts of a block; None if they are not near."""
    store.fetch(key)
    if store.index.near(key) != 0b11:
        return None
    store.mover.load([Placed(key, (7, 7))])
    store.index.release(owner)
    return store.bytes_at(0, 7), store.bytes_at(1, 7)


class StoreBesideTests(Installed):
    """Set `store` to its registered name."""

    store: ClassVar[str]

    @pytest.fixture
    def opened(self, catalog: Catalog, tmp_path: Path) -> Iterator[Open]:
        """Opens the store of one of two engines."""
        item, left = catalog.named(BlockStore, self.store).item, list[Filled]()

        def opened(engine: int, layout: str = '{"dtype": "a"}', limit: int = 1 << 20) -> Filled:
            need = StoreNeed(
                layout=layout,
                sizes=SIZES,
                folder=tmp_path / f"engine-{engine}",
                folder_limit=limit,
                beside=(tmp_path / f"engine-{1 - engine}",),
            )
            left.append(Filled(item.build(need)))
            return left[-1]

        yield opened
        for each in left:
            each.mover.close()

    def test_what_another_one_writes_is_found_and_loaded(self, opened: Open) -> None:
        mine, other = opened(0), opened(1)
        other.save(KEYS[0], 3, 5)
        saved = other.bytes_at(0, 3), other.bytes_at(1, 5)
        other.settle()
        until(lambda: mine.index.groups_of(KEYS[0]) == 0b11, mine, other)
        assert loaded(mine, KEYS[0]) == saved
        assert not mine.index.usage.folder_bytes, "it is not written again"
        assert mine.index.pin(KEYS, "session", float("inf")) == 1

    def test_what_was_there_at_the_start_is_found_at_once(self, opened: Open) -> None:
        other = opened(1)
        other.save(KEYS[0], 3, 5)
        other.mover.close()
        assert opened(0).index.groups_of(KEYS[0]) == 0b11

    def test_a_fetch_looks_for_what_it_has_not_seen(self, opened: Open) -> None:
        """As a rank is told to fetch what the first rank has seen."""
        mine, other = opened(0), opened(1)
        other.save(KEYS[0], 3, 5)
        other.settle()
        mine.index.fetch([(KEYS[0], 0b11)], "owner")
        mine.wait("owner")
        assert mine.index.near(KEYS[0]) == 0b11

    def test_what_the_other_one_overwrites_is_lost_and_never_wrong(self, opened: Open) -> None:
        mine, other = opened(0), opened(1, limit=600)
        keys = [bytes([i]) * 16 for i in range(30)]
        wrong = 0
        for i, key in enumerate(keys):
            other.save(key, i % 7, (i + 1) % 7)
            other.settle()
            for j in range(max(0, i - 6), i + 1):
                right = other.bytes_at(0, j % 7), other.bytes_at(1, (j + 1) % 7)
                wrong += loaded(mine, keys[j]) not in (None, right)
        assert not wrong
        until(lambda: mine.index.groups_of(keys[-1]) == 0b11, mine, other)
        assert not mine.index.groups_of(keys[0])

    def test_a_process_that_starts_anew_is_read_on(self, opened: Open) -> None:
        mine, other = opened(0), opened(1)
        other.save(KEYS[0], 3, 5)
        other.mover.close()
        other = opened(1)
        other.index.drop(KEYS[0])
        other.save(KEYS[1], 2, 2)
        other.settle()
        until(lambda: mine.index.groups_of(KEYS[1]) == 0b11, mine, other)
        until(lambda: not mine.index.groups_of(KEYS[0]), mine, other)

    def test_what_is_dropped_is_promised_once_it_is_written_anew(self, opened: Open) -> None:
        mine, other = opened(0), opened(1)
        other.save(KEYS[0], 3, 5)
        other.settle()
        until(lambda: mine.index.groups_of(KEYS[0]) == 0b11, mine, other)
        assert loaded(mine, KEYS[0])
        mine.index.drop(KEYS[0])
        assert mine.index.groups_of(KEYS[0]) == mine.index.near(KEYS[0]) == 0
        assert other.index.groups_of(KEYS[0]) == 0b11, "that is for its process to say"

    def test_another_layout_is_not_read(self, opened: Open) -> None:
        other = opened(1, '{"dtype": "b"}')
        other.save(KEYS[0], 3, 5)
        other.settle()
        mine = opened(0)
        mine.mover.poll()
        sleep(0.5)
        mine.mover.poll()
        assert not mine.index.groups_of(KEYS[0])
