"""Histories of requests over a store of blocks, and how its files are harmed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from inferno.builtin.lru import LRUPrefixCache
from inferno.contracts import BlockStore, StoreNeed
from inferno.core.kvcache import CacheGroup, WindowGroup
from inferno.core.types import Step
from inferno.stores import NoStore
from inferno.stores.speeds import Speeds
from inferno.stores.storing import Storing
from inferno.testing.cache_policy import NUM_BLOCKS, ROWS, CacheMachine


def data_files(folder: Path) -> list[Path]:
    """The files of blocks, as opposed to those that describe a folder of one layout: all but the
    topmost of it."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in paths if len(path.relative_to(folder).parts) > 2)


def damage(path: Path, how: str, other: Path) -> None:
    data = path.read_bytes() or b"\0"  # a file that another thread is about to write is empty
    if how == "removed":
        path.unlink()
    elif how == "another's":
        path.write_bytes(other.read_bytes())
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        path.write_bytes({"cut": data[:-1], "flipped": flipped, "longer": data + b"\0"}[how])


class _Fickle(Speeds):
    """Estimates that change each time: a load may take one step or many, or not pay."""

    asked = 0

    def budget(self) -> int | None:
        self.asked += 1
        return (None, 0, 20, 50)[self.asked % 4]

    def pays(self, num_tokens: int, nbytes: int, far: int = 0) -> bool:
        self.asked += 1
        return self.asked % 7 != 0


class StoreMachine(CacheMachine):
    """The same requests with a store: blocks are saved, evicted, loaded, lost; the engine ends and
    starts again, in order or by a crash."""

    def __init__(
        self,
        item: BlockStore,
        groups: Callable[[], Sequence[CacheGroup]],
        folder: Path,
        tests: Any,
        loaded: list[int],
    ) -> None:
        self.item, self.groups_of, self.folder = item, groups, folder
        self.tests, self.loaded = tests, loaded
        super().__init__(LRUPrefixCache, groups())

    def open_store(self) -> NoStore:
        runner, groups = self.runner, self.groups.groups
        windows = [each.num_places for each in groups if isinstance(each, WindowGroup)]
        snapshots = [ROWS + 1 + 3] if runner.has_states else []
        need = StoreNeed(
            layout=str([runner.part_bytes(group) for group in range(len(groups))]),
            sizes=tuple(runner.part_bytes(group) for group in range(len(groups))),
            folder=self.folder if self.tests.keeps_files else None,
            folder_limit=4000,
            host_limit=1000,
        )
        self.built = self.item.build(need)
        runner.keep(self.built[1], [NUM_BLOCKS, *windows, *snapshots])
        storing = Storing(self.groups, *self.built, need.sizes)
        storing.speeds = _Fickle(self.built[0].usage)
        return storing

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        """End the engine and start another one, which gets the requests that were not answered."""
        self.loaded.append(self.built[0].usage.loaded_bytes)
        if crash:
            self.tests.abandon(self.built)
        else:
            self.save_last()
            self.store.close()
        self.begin(LRUPrefixCache, self.groups_of())
        for request in self.open.values():
            self.output[request.id] = []
            self.scheduler.add(request)

    def save_last(self) -> None:
        if saves := self.store.take_last():
            self.runner.run(Step((), saves=saves))

    @rule(seed=st.integers(0, 99), how=st.sampled_from(["cut", "flipped", "removed", "another's"]))
    def damage(self, seed: int, how: str) -> None:
        draw, files = random.Random(seed), data_files(self.folder)
        if files:
            path = draw.choice(files)
            try:
                damage(path, how, draw.choice(files))
            except FileNotFoundError:  # it has just been replaced
                path.unlink(missing_ok=True)

    def teardown(self) -> Any:
        self.drain()
        self.loaded.append(self.built[0].usage.loaded_bytes)
        self.store.close()
