"""Threads report what they have done, and wake nobody for each file."""

from __future__ import annotations

import threading
from pathlib import Path
from select import select
from time import monotonic

import pytest
import torch

from inferno_offload import files
from inferno_offload.files import Fetched, Files
from inferno_offload.folder import Folder
from inferno_offload.parts import Read, Write
from inferno_offload.slots import Buffer, Slots, runs

PARTS = [(bytes([i]) * 16, 0) for i in range(20)]


class Counting(Files):
    """Counts its signals."""

    signals = 0

    def signal(self) -> None:
        self.signals += 1
        super().signal()


def test_a_wait_for_many_parts_is_woken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAUSE", 1000.0)
    folder = Folder.open(tmp_path, "{}", (8,), 1 << 20)
    reader = Counting(folder.parts)
    reader._told = monotonic()
    with reader._lock:  # nothing is reported before all are asked for
        reader._left += 1
    for i, part in enumerate(PARTS):
        buffer = Buffer(torch.full((8,), i, dtype=torch.uint8))
        (written,) = folder.parts.write([Write(part, 16 * i, buffer)])
        assert written[1] is not None
        reader.read([Read(part, written[1], Buffer(torch.zeros(8, dtype=torch.uint8)))])
    with reader._lock:
        reader._left -= 1
        last = not reader._left
    reports = list[Fetched]()
    while len(reports) < len(PARTS):
        assert last or select([reader.descriptor], [], [], 30)[0], "the last report wakes nothing"
        reports += [each for each in reader.take() if isinstance(each, Fetched)]
    assert reader.signals <= 1 and all(report.whole for report in reports)
    assert all(r.read.buffer.data.tolist() == [PARTS.index(r.read.part)] * 8 for r in reports)
    reader.close()
    folder.close()


# --- slots ----------------------------------------------------------------------------------------


def test_slots_are_used_again_the_first_one_first() -> None:
    slots = Slots.of(8, 24, 24)
    given = [slots.take() for _ in range(4)]
    assert [buffer.slot for buffer in given] == [0, 1, 2, -1]
    for buffer in reversed(given):
        slots.give(buffer)
    assert [slots.take().slot for _ in range(4)] == [0, 1, 2, -1]


def test_memory_that_only_bursts_need_can_be_written_again() -> None:
    slots = Slots.of(3 * 4096 + 8, 0, 1 << 20)
    for content in (1, 2):
        buffers = [slots.take() for _ in range(20)]
        for buffer in buffers:
            buffer.data.fill_(content)
        slots.give(buffers.pop(7))
        slots.trim()
        assert all((buffer.data == content).all() for buffer in buffers), "a neighbour lost bytes"
        for buffer in buffers:
            slots.give(buffer)


@pytest.mark.slow
def test_memory_is_trimmed_by_one_thread_while_another_uses_it() -> None:
    slots, ended = Slots.of(2 * 4096, 0, 64 * 2 * 4096), threading.Event()

    def trim() -> None:
        while not ended.is_set():
            slots.trim()

    thread = threading.Thread(target=trim)
    thread.start()
    try:
        for turn in range(130):  # each number of buffers twice
            buffers = [slots.take() for _ in range(1 + turn % 64)]
            assert len({buffer.slot for buffer in buffers}) == len(buffers)
            for buffer in buffers:
                buffer.data.fill_(turn % 251)
            assert all((buffer.data == turn % 251).all() for buffer in buffers)
            for buffer in buffers:
                slots.give(buffer)
    finally:
        ended.set()
        thread.join()
    slots.trim()
    assert sorted(slots.take().slot for _ in range(64)) == list(range(64)), "a slot is lost"


def test_a_group_without_bytes_has_no_slots() -> None:
    assert Slots.of(0, 0, 1 << 20).take().nbytes == 0


def test_more_memory_than_there_is_means_no_slots() -> None:
    assert Slots.of(8, 0, 1 << 62).take().slot == -1


def test_neighbours_on_both_sides_are_together() -> None:
    slots = Slots.of(8, 0, 64)
    one, two, three, four = (slots.take() for _ in range(4))
    buffer = Buffer(torch.zeros(8, dtype=torch.uint8))
    assert list(runs([4, 5, 6], [one, two, three])) == [(0, 3)]
    assert list(runs([4, 5, 7, 8], [one, two, three, four])) == [(0, 2), (2, 4)]
    assert list(runs([4, 5, 6], [two, one, three])) == [(0, 1), (1, 2), (2, 3)]
    assert list(runs([4, 5], [buffer, buffer])) == [(0, 1), (1, 2)]
    assert list(runs([], [])) == []
