"""The file of parts and its index: what is found after a crash, and what room is left."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from inferno_offload.extents import Extents
from inferno_offload.index import ENTRY_BYTES, Part, Place
from inferno_offload.parts import PAGE, PartsFile, Read, Write, extent
from inferno_offload.slots import Buffer

SIZES = (8, 20)
PARTS: list[Part] = [(bytes([i]) * 16, i % 2) for i in range(8)]


def opened(folder: Path, layout: str = "a", limit: int = 1 << 20) -> PartsFile:
    return PartsFile.open(folder, layout, SIZES, limit)


def body(part: Part) -> Buffer:
    return Buffer(torch.full((SIZES[part[1]],), part[0][0], dtype=torch.uint8))


def write(parts: PartsFile, free: Extents, *which: Part) -> dict[Part, Place]:
    work = list[Write | Part]()
    for part in which:
        offset = free.take(parts.extent(part))
        assert offset is not None
        work.append(Write(part, offset, body(part)))
    written = {each.part: place for each, place in parts.write(work)}
    return {part: place for part, place in written.items() if place is not None}


def read(parts: PartsFile, places: dict[Part, Place]) -> list[Part]:
    """Return the parts that are whole, whose bytes are right."""
    empty = {part: Buffer(torch.zeros(SIZES[part[1]], dtype=torch.uint8)) for part in places}
    lists = list(parts.together(Read(*item, empty[item[0]]) for item in places.items()))
    intact = list[Part]()
    for work, whole in zip(lists, parts.read(lists), strict=True):
        for each, good in zip(work, whole, strict=True):
            assert not good or torch.equal(each.buffer.data, body(each.part).data)
            intact += [each.part] if good else []
    return sorted(intact)


def test_parts_are_found_as_they_were_written(tmp_path: Path) -> None:
    parts = opened(tmp_path)
    places, free = parts.recover()
    assert not places and not free.end
    places = write(parts, free, *PARTS)
    parts.write([PARTS[3]])  # it is removed
    parts.close()
    again = opened(tmp_path)
    entries, _ = again.recover()
    assert list(entries) == [part for part in PARTS if part is not PARTS[3]]
    assert entries == {part: places[part] for part in entries}
    assert read(again, entries) == sorted(entries)
    again.close()


def test_the_order_of_use_is_kept(tmp_path: Path) -> None:
    parts = opened(tmp_path)
    _, free = parts.recover()
    places = write(parts, free, *PARTS)
    order = random.Random(0).sample(PARTS, len(PARTS))
    parts.write_index({part: places[part] for part in order}, free.end)
    parts.close()
    again = opened(tmp_path)
    assert list(again.recover()[0]) == order
    again.close()


@pytest.mark.parametrize("cut", range(0, 3 * ENTRY_BYTES, 11))
def test_a_log_that_ends_early_has_the_entries_before(tmp_path: Path, cut: int) -> None:
    parts = opened(tmp_path)
    _, free = parts.recover()
    write(parts, free, *PARTS[:3])
    parts.close()
    os.truncate(tmp_path / "index", 3 * ENTRY_BYTES - cut)
    again = opened(tmp_path)
    entries, free = again.recover()
    assert list(entries) == PARTS[: (3 * ENTRY_BYTES - cut) // ENTRY_BYTES]
    entries |= write(again, free, *PARTS[3:])  # and what follows is aligned
    assert read(again, entries) == sorted(entries)
    again.close()


def test_of_two_parts_in_one_place_the_later_one_is_known(tmp_path: Path) -> None:
    parts = opened(tmp_path)
    _, free = parts.recover()
    write(parts, free, *PARTS[:3])
    parts.write([Write(PARTS[4], 8, body(PARTS[4]))])  # the removal before it was not kept
    parts.close()
    again = opened(tmp_path)
    entries, free = again.recover()
    assert PARTS[4] in entries and PARTS[1] not in entries
    assert read(again, entries) == sorted(entries)
    assert free.take(12) == 16
    again.close()


def test_another_layouts_entries_are_not_read(tmp_path: Path) -> None:
    parts = opened(tmp_path)
    write(parts, parts.recover()[1], *PARTS)
    parts.close()
    other = opened(tmp_path, "b")
    assert other.recover()[0] == {}
    other.close()


def test_a_smaller_limit_keeps_what_fits(tmp_path: Path) -> None:
    parts = opened(tmp_path)
    write(parts, parts.recover()[1], *PARTS)
    parts.close()
    small = opened(tmp_path, limit=400)
    entries, free = small.recover()
    assert 0 < len(entries) < len(PARTS) and free.end <= free.limit
    assert read(small, entries) == sorted(entries)
    small.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 400


def test_the_files_never_grow_beyond_their_limit(tmp_path: Path) -> None:
    parts, draw = opened(tmp_path, limit=500), random.Random(0)
    places, free = parts.recover()
    for _ in range(400):
        part = draw.choice(PARTS)
        if part in places:
            free.give(places.pop(part).offset, parts.extent(part))
            parts.write([part])
        elif (offset := free.take(parts.extent(part))) is not None:
            ((_, place),) = parts.write([Write(part, offset, body(part))])
            assert place is not None
            places[part] = place
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 500
    assert read(parts, places) == sorted(places)
    parts.close()


def test_a_full_disk_is_a_part_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = opened(tmp_path)
    _, free = parts.recover()
    places = write(parts, free, *PARTS[:2])

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert write(parts, free, PARTS[2]) == {}
        parts.write([PARTS[0]])
    write(parts, free, PARTS[3])  # the removal is noted now
    parts.close()
    again = opened(tmp_path)
    assert list(again.recover()[0]) == [PARTS[1], PARTS[3]]
    again.close()
    assert places.keys() == set(PARTS[:2])


def test_a_part_that_was_being_overwritten_is_not_known_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    write_bodies = PartsFile._write

    def killed(parts: PartsFile, work: list[Write]) -> dict[Write, Place | None]:
        write_bodies(parts, work)
        raise KilledError

    parts = opened(tmp_path)
    _, free = parts.recover()
    places = write(parts, free, *PARTS[:4])
    free.give(places[PARTS[1]].offset, parts.extent(PARTS[1]))
    offset = free.take(parts.extent(PARTS[5]))
    assert offset == places[PARTS[1]].offset
    monkeypatch.setattr(PartsFile, "_write", killed)
    with pytest.raises(KilledError):
        parts.write([PARTS[1], Write(PARTS[5], offset, body(PARTS[5]))])
    parts.close()
    again = opened(tmp_path)
    entries, _ = again.recover()
    assert read(again, entries) == list(entries) == [PARTS[0], PARTS[2], PARTS[3]]
    again.close()


def test_a_part_that_is_removed_in_the_batch_that_writes_it_is_not_known(tmp_path: Path) -> None:
    parts = opened(tmp_path)
    _, free = parts.recover()
    offset = free.take(parts.extent(PARTS[0]))
    assert offset is not None
    writes = [Write(part, offset, body(part)) for part in (PARTS[0], PARTS[2])]
    parts.write([writes[0], PARTS[0], writes[1]])
    parts.close()
    again = opened(tmp_path)
    entries, _ = again.recover()
    assert read(again, entries) == list(entries) == [PARTS[2]]
    again.close()


def test_large_parts_begin_with_a_page() -> None:
    assert [extent(size) for size in (0, 9000, 16 * PAGE, 16 * PAGE + 1)] == [
        1,
        9000,
        16 * PAGE,
        17 * PAGE,
    ]


def test_extents_do_not_overlap_and_merge_again() -> None:
    draw, free = random.Random(1), Extents(1000)
    given = dict[int, int]()
    for _ in range(3000):
        if given and draw.random() < 0.45:
            offset = draw.choice(list(given))
            free.give(offset, given.pop(offset))
        elif (taken := free.take(size := draw.choice([7, 20, 90]))) is not None:
            assert taken + size <= 1000
            for other, length in given.items():
                assert other + length <= taken or taken + size <= other
            given[taken] = size
    rebuilt = Extents.without(sorted(given.items()), 1000)
    for offset, size in given.items():
        free.give(offset, size)
        rebuilt.give(offset, size)
    for each in (free, rebuilt):
        assert each.end == 0 and each.take(1000) == 0 and each.take(1) is None


def test_parts_that_are_saved_together_are_neighbours_in_what_others_left() -> None:
    free = Extents(100)
    given = [free.take(10) for _ in range(10)]
    assert given == list(range(0, 100, 10))
    for offset in (10, 40, 50, 60):
        free.give(offset, 10)
    assert [free.take(10) for _ in range(4)] == [10, 40, 50, 60]


def test_a_folder_on_a_full_disk_is_opened_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = opened(tmp_path)
    write(parts, parts.recover()[1], *PARTS[:3])
    parts.close()

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    again = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        places, free = again.recover()
        assert read(again, places) == sorted(PARTS[:3])
        assert write(again, free, PARTS[3]) == {}
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'parts'} cannot be written: No space left on device; some blocks are not kept"
    ]
    assert {each.name for each in tmp_path.iterdir()} == {"index", "parts"}, "a draft takes room"
    write(again, free, PARTS[5])
    again.close()
    last = opened(tmp_path)
    assert list(last.recover()[0]) == [*PARTS[:3], PARTS[5]]
    last.close()
