"""Tests of every store of blocks: what comes back is what was saved, or nothing."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from select import select
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from inferno.catalog import Catalog
from inferno.contracts import BlockStore, Mover, Placed, StoreIndex, StoreNeed
from inferno.errors import OptionError
from inferno.testing.alike import alike
from inferno.testing.cache_policy import GROUPS
from inferno.testing.installed import Installed
from inferno.testing.store_machine import StoreMachine, damage, data_files

SIZES, PLACES = (6, 16), 8
KEYS = [bytes([i]) * 16 for i in range(6)]
Abandon = Callable[[tuple[StoreIndex, Mover]], None]


class Filled:
    """A store of two groups, each of two pieces, whose places hold numbers of their own."""

    def __init__(self, built: tuple[StoreIndex, Mover], sizes: Sequence[int] = SIZES) -> None:
        self.index, self.mover = built
        self.groups = [
            [
                torch.arange(PLACES * cut).view(PLACES, cut).to(torch.uint8) + 7 * group
                for cut in (size // 2, size - size // 2)
                if cut
            ]
            for group, size in enumerate(sizes)
        ]
        self.mover.register(self.groups)

    def bytes_at(self, group: int, place: int) -> list[int]:
        return [value for piece in self.groups[group] for value in piece[place].tolist()]

    def save(self, key: bytes, *places: int | None) -> None:
        placed = Placed(key, places)
        self.index.note(placed)
        self.mover.save([placed])

    def fetch(self, *keys: bytes) -> None:
        """Fetch all parts of blocks, and wait."""
        self.index.fetch([(key, self.index.groups_of(key)) for key in keys], "owner")
        self.wait("owner")

    def wait(self, owner: str) -> None:
        for _ in range(200):
            if owner in self.mover.poll():
                return
            descriptor = self.mover.fileno()
            assert descriptor is not None, "a fetch without a descriptor has ended at once"
            select([descriptor], [], [], 0.05)
        raise AssertionError("a fetch never ends")

    def settle(self) -> None:
        """Let files be written."""
        for _ in range(10):
            self.mover.poll()
            if (descriptor := self.mover.fileno()) is not None:
                select([descriptor], [], [], 0.02)


class StoreTests(Installed):
    """Set `store` to its registered name."""

    store: ClassVar[str]
    keeps_files: ClassVar[bool] = True
    """Whether it has a folder."""
    max_examples: ClassVar[int] = 40

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> BlockStore:
        return catalog.named(BlockStore, cls.store).item

    @pytest.fixture
    def need(self, tmp_path: Path) -> StoreNeed:
        return self.need_of(tmp_path / "kv")

    @classmethod
    def need_of(cls, folder: Path, layout: str = '{"dtype": "a"}', **limits: Any) -> StoreNeed:
        limits = {"folder_limit": 1 << 20, "host_limit": 0 if cls.keeps_files else 1 << 20} | limits
        return StoreNeed(
            layout=layout, sizes=SIZES, folder=folder if cls.keeps_files else None, **limits
        )

    @staticmethod
    def abandon(built: tuple[StoreIndex, Mover]) -> None:
        """End a store as a crash would: nothing more is written. Here it is closed."""
        built[1].close()

    def test_what_is_loaded_is_what_was_saved(self, item: BlockStore, need: StoreNeed) -> None:
        filled = Filled(item.build(need))
        saved = [filled.bytes_at(0, 3), filled.bytes_at(1, 5)]
        filled.save(KEYS[0], 3, 5)
        for pieces in filled.groups:
            for piece in pieces:
                piece[[3, 5]] = 0
        filled.fetch(KEYS[0])
        assert filled.index.near(KEYS[0]) == 0b11
        filled.mover.load([Placed(KEYS[0], (1, None)), Placed(KEYS[0], (None, 2))])
        assert [filled.bytes_at(0, 1), filled.bytes_at(1, 2)] == saved
        assert not any(filled.bytes_at(1, 5)), "a place that was not named is written"
        assert filled.index.usage.loaded_bytes == sum(SIZES) == filled.index.usage.saved_bytes
        filled.mover.close()

    def test_parts_of_groups_add_up(self, item: BlockStore, need: StoreNeed) -> None:
        filled = Filled(item.build(need))
        filled.save(KEYS[0], 3, None)
        assert filled.index.groups_of(KEYS[0]) == 0b01
        filled.settle()
        filled.save(KEYS[0], None, 5)
        assert filled.index.groups_of(KEYS[0]) == 0b11
        filled.index.drop(KEYS[0])
        assert filled.index.groups_of(KEYS[0]) == filled.index.near(KEYS[0]) == 0
        filled.settle()
        filled.fetch(KEYS[0])
        assert filled.index.groups_of(KEYS[0]) == 0
        filled.mover.close()

    def test_saving_what_it_has_changes_nothing(self, item: BlockStore, need: StoreNeed) -> None:
        """Another store that is told of the same saves may lack it."""
        filled = Filled(item.build(need))
        filled.save(KEYS[0], 3, None)
        filled.save(KEYS[0], 3, 5)
        filled.fetch(KEYS[0])
        first, second = filled.bytes_at(0, 3), filled.bytes_at(1, 5)
        filled.mover.load([Placed(KEYS[0], (1, 2))])
        assert (filled.bytes_at(0, 1), filled.bytes_at(1, 2)) == (first, second)
        filled.mover.close()

    def test_a_fetch_of_what_is_not_there_ends(self, item: BlockStore, need: StoreNeed) -> None:
        filled = Filled(item.build(need))
        filled.index.fetch([(KEYS[4], 0b01)], "owner")
        filled.wait("owner")
        assert filled.index.near(KEYS[4]) == 0
        filled.mover.close()
        assert not filled.mover.poll(), "an engine that is closed looks once more"

    def test_what_is_fetched_stays_near_until_it_is_released(
        self, item: BlockStore, need: StoreNeed
    ) -> None:
        filled = Filled(item.build(need))
        filled.save(KEYS[0], 3, 5)
        filled.settle()
        filled.fetch(KEYS[0])
        for key in KEYS[1:]:
            filled.save(key, 1, 2)
            filled.settle()
        assert filled.index.near(KEYS[0]) == 0b11
        filled.index.release("owner")
        filled.mover.close()

    def test_pins_count_the_leading_blocks_it_has(self, item: BlockStore, need: StoreNeed) -> None:
        filled = Filled(item.build(need))
        filled.save(KEYS[0], 3, 5)
        filled.save(KEYS[1], 3, 5)
        filled.save(KEYS[3], 3, 5)
        assert filled.index.pin(KEYS, "session", float("inf")) == 2
        filled.mover.close()

    @pytest.mark.parametrize("sizes", [(6, 0), (0, 16)])
    def test_parts_without_bytes_are_kept_as_any(
        self, item: BlockStore, need: StoreNeed, sizes: tuple[int, int]
    ) -> None:
        """As of a group whose layers are in other processes."""
        need = evolve(need, sizes=sizes, host_limit=1 << 20)
        filled, own = Filled(item.build(need), sizes), int(sizes[1] > 0)
        for i in range(4):
            filled.save(KEYS[i], *((i, i) if i < 2 else (None, i) if own else (i, None)))
        saved = filled.bytes_at(own, 1)
        if self.keeps_files:
            filled.mover.close()
            filled = Filled(item.build(need), sizes)
        kept = [filled.index.groups_of(key) for key in KEYS[:5]]
        assert kept == [0b11, 0b11, 1 << own, 1 << own, 0]
        filled.fetch(*KEYS[:4])
        assert [filled.index.near(key) for key in KEYS[:5]] == kept
        filled.mover.load([Placed(KEYS[1], (6, 6)), Placed(KEYS[0], (7, 7))])
        assert filled.bytes_at(own, 6) == saved and not filled.index.usage.lost_parts
        filled.index.drop(KEYS[0])
        assert filled.index.groups_of(KEYS[0]) == 0
        filled.mover.close()

    # --- files ------------------------------------------------------------------------------------

    @pytest.fixture
    def restarted(
        self, item: BlockStore, need: StoreNeed
    ) -> Callable[[Callable[[list[Path]], object]], Filled]:
        """Save three blocks, close, do something to the files, and build the store again."""
        if not self.keeps_files:
            pytest.skip("it keeps no files")

        def restart(damage: Callable[[list[Path]], object] = lambda files: None) -> Filled:
            filled = Filled(item.build(need))
            for i, key in enumerate(KEYS[:3]):
                filled.save(key, i, i)
            filled.mover.close()
            assert need.folder is not None
            damage(data_files(need.folder))
            return Filled(item.build(need))

        return restart

    def test_blocks_come_back_after_a_restart(
        self, restarted: Callable[..., Filled], item: BlockStore
    ) -> None:
        filled = restarted()
        before = filled.bytes_at(0, 2), filled.bytes_at(1, 2)
        assert [filled.index.groups_of(key) for key in KEYS[:4]] == [3, 3, 3, 0]
        assert filled.index.near(KEYS[2]) == 0 and filled.index.usage.folder_bytes > 0
        filled.fetch(*KEYS[:3])
        filled.mover.load([Placed(KEYS[2], (6, 6))])
        assert (filled.bytes_at(0, 6), filled.bytes_at(1, 6)) == before
        filled.mover.close()

    @pytest.mark.parametrize("how", ["cut", "flipped", "longer", "removed", "another's"])
    @pytest.mark.parametrize("which", [0, 1])
    def test_damaged_files_are_lost_parts(
        self, restarted: Callable[..., Filled], how: str, which: int
    ) -> None:
        filled = restarted(lambda files: damage(files[which], how, files[1 - which]))
        promised = sum(filled.index.groups_of(key).bit_count() for key in KEYS[:3])
        filled.fetch(*KEYS[:3])
        near = [filled.index.near(key) for key in KEYS[:3]]
        assert near == [filled.index.groups_of(key) for key in KEYS[:3]], "a lost part is promised"
        count = sum(groups.bit_count() for groups in near)
        assert filled.index.usage.lost_parts == promised - count
        assert count < 6 or how == "longer"
        for i, key in enumerate(KEYS[:3]):
            for group, size in enumerate(SIZES):
                if near[i] >> group & 1:
                    expected = filled.bytes_at(group, i)
                    filled.mover.load([Placed(key, ((7, None), (None, 7))[group])])
                    assert filled.bytes_at(group, 7) == expected and len(expected) == size
        filled.mover.close()

    def test_files_are_for_their_owner(
        self, restarted: Callable[..., Filled], need: StoreNeed
    ) -> None:
        filled = restarted()
        assert need.folder is not None
        modes = {stat.S_IMODE(path.stat().st_mode) for path in data_files(need.folder)}
        assert modes == {0o600}
        filled.mover.close()

    def test_files_keep_to_their_limit(self, item: BlockStore, tmp_path: Path) -> None:
        if not self.keeps_files:
            pytest.skip("it keeps no files")
        filled = Filled(item.build(self.need_of(tmp_path, folder_limit=1000)))
        keys = [bytes([i]) * 16 for i in range(12)]
        for key in keys + keys[:6]:
            filled.save(key, 1, 2)
            filled.settle()
        assert 0 < sum(path.stat().st_size for path in data_files(tmp_path)) <= 1000
        assert filled.index.usage.folder_bytes <= 1000
        present = [key for key in keys if filled.index.groups_of(key)]
        assert keys[5] in present and len(present) < len(keys)
        filled.mover.close()

    def test_files_keep_to_their_limit_at_the_end(self, item: BlockStore, tmp_path: Path) -> None:
        if not self.keeps_files:
            pytest.skip("it keeps no files")
        filled = Filled(item.build(self.need_of(tmp_path, folder_limit=1000)))
        for i in range(24):
            filled.save(bytes([i]) * 16, 1, 2)
        filled.mover.close()  # while files are written, and their sizes were not taken
        assert 0 < sum(path.stat().st_size for path in data_files(tmp_path)) <= 1000

    def test_another_layouts_blocks_are_not_seen(self, item: BlockStore, tmp_path: Path) -> None:
        if not self.keeps_files:
            pytest.skip("it keeps no files")
        filled = Filled(item.build(self.need_of(tmp_path)))
        filled.save(KEYS[0], 3, 5)
        filled.mover.close()
        other = Filled(item.build(self.need_of(tmp_path, '{"dtype": "b"}')))
        assert other.index.groups_of(KEYS[0]) == 0
        other.mover.close()

    def test_a_survey_tells_the_layouts_of_a_folder(self, item: BlockStore, tmp_path: Path) -> None:
        if not self.keeps_files or item.survey is None:
            pytest.skip("it keeps no files, or cannot tell which")
        assert not item.survey(tmp_path / "kv") and not (tmp_path / "kv").exists()
        needs = [self.need_of(tmp_path, f'{{"dtype": "{name}"}}') for name in "ab"]
        for need in needs:
            filled = Filled(item.build(need))
            filled.save(KEYS[0], 3, 5)
            filled.mover.close()
        filled = Filled(item.build(needs[0]))
        by_layout = {each.layout: each for each in item.survey(tmp_path)}
        filled.mover.close()
        assert by_layout.keys() == {need.layout for need in needs}, "the one in use too"
        for each in by_layout.values():
            files = [path for path in each.path.rglob("*") if path.is_file()]
            assert each.nbytes == sum(path.stat().st_size for path in files) > sum(SIZES)
            assert 0 < each.used < time.time() + 1

    def test_a_folder_that_cannot_be_made_is_named(self, item: BlockStore, tmp_path: Path) -> None:
        if not self.keeps_files:
            pytest.skip("it keeps no files")
        (tmp_path / "file").write_text("")
        with pytest.raises(OptionError, match="--kv-store .*file"):
            item.build(self.need_of(tmp_path / "file"))

    # --- with a scheduler -------------------------------------------------------------------------

    @alike
    @pytest.mark.parametrize("groups", GROUPS)
    def test_right_content_whatever_happens(
        self, item: BlockStore, groups: str, tmp_path: Path
    ) -> None:
        folders = (tmp_path / str(i) for i in range(1 << 30))
        loaded = list[int]()
        run_state_machine_as_test(
            lambda: StoreMachine(item, GROUPS[groups], next(folders), type(self), loaded),  # type: ignore[arg-type]  # whatever makes one will do
            settings=settings(
                max_examples=self.max_examples,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert sum(loaded) > 0, "no history loaded a block"
