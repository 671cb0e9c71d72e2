"""Threads report what they have done, and wake nobody for each file."""

from __future__ import annotations

from pathlib import Path
from select import select
from time import monotonic

import pytest
import torch

from inferno_offload import files
from inferno_offload.files import Files, Read
from inferno_offload.folder import Folder
from inferno_offload.slots import Buffer, Slots, runs

PARTS = [(bytes([i]) * 16, 0) for i in range(20)]


class Counting(Files):
    """Counts its signals."""

    signals = 0

    def signal(self) -> None:
        self.signals += 1
        super().signal()


def test_who_waits_for_many_files_is_woken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAUSE", 1000.0)
    found = Counting(Folder.open(tmp_path, "{}", (8,), 1 << 20))
    found._told = monotonic()
    buffers = [Buffer(torch.full((8,), i, dtype=torch.uint8)) for i in range(len(PARTS))]
    with found._lock:  # nothing is reported before all are asked for
        found._left += 1
    for part, buffer in zip(PARTS, buffers, strict=True):
        found.folder.write(part, buffer.data.numpy().data)
        found.read(part, Buffer(torch.zeros(8, dtype=torch.uint8)))
    with found._lock:
        found._left -= 1
        last = not found._left
    reports = list[Read]()
    while len(reports) < len(PARTS):
        assert last or select([found.descriptor], [], [], 30)[0], "the last report wakes nobody"
        reports += [each for each in found.take() if isinstance(each, Read)]
    assert found.signals <= 1 and all(report.whole for report in reports)
    found.close()


# --- slots ----------------------------------------------------------------------------------------


def test_slots_are_used_again_the_first_one_first() -> None:
    slots = Slots.of(8, 24)
    given = [slots.take() for _ in range(4)]
    assert [buffer.slot for buffer in given] == [0, 1, 2, -1]
    for buffer in reversed(given):
        slots.give(buffer)
    assert [slots.take().slot for _ in range(4)] == [0, 1, 2, -1]


def test_a_group_without_bytes_has_no_slots() -> None:
    assert Slots.of(0, 1 << 20).take().nbytes == 0


def test_more_memory_than_there_is_means_no_slots() -> None:
    assert Slots.of(8, 1 << 62).take().slot == -1


def test_neighbours_on_both_sides_are_together() -> None:
    slots = Slots.of(8, 64)
    one, two, three, four = (slots.take() for _ in range(4))
    own = Buffer(torch.zeros(8, dtype=torch.uint8))
    assert list(runs([4, 5, 6], [one, two, three])) == [(0, 3)]
    assert list(runs([4, 5, 7, 8], [one, two, three, four])) == [(0, 2), (2, 4)]
    assert list(runs([4, 5, 6], [two, one, three])) == [(0, 1), (1, 2), (2, 3)]
    assert list(runs([4, 5], [own, own])) == [(0, 1), (1, 2)]
    assert list(runs([], [])) == []
