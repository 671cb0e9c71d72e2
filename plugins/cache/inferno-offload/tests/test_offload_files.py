"""Threads report what they have done, and wake nobody for each file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from select import select
from time import monotonic

import pytest
import torch

from inferno.contracts import Placed, StoreNeed
from inferno_offload import files, pace, parts
from inferno_offload.files import Fetched, Files
from inferno_offload.folder import Folder
from inferno_offload.pace import Pace
from inferno_offload.parts import Read, Write
from inferno_offload.slots import Buffer, Slots, runs
from inferno_offload.store import Store, build

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


def test_parts_that_a_full_disk_refuses_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    need = StoreNeed(layout="{}", sizes=(16,), folder=tmp_path, folder_limit=1 << 20)
    store, _ = build(need)
    assert isinstance(store, Store) and store.files is not None and store._folder is not None
    store.register([[torch.zeros(8, 16, dtype=torch.uint8)]])
    monkeypatch.setattr(os, "pwritev", full)
    for i in range(3):
        store.save([Placed(bytes([i]) * 16, (i,))])
        store.files.finish()
        store.poll()
    assert not store.groups_of(bytes(16)) and store.usage.folder_bytes == 0
    assert store._folder.free.end == 0, "their extents are free again"
    assert not store._folder.parts._unnoted, "each later write would try to note them"
    store.close()


# --- pace -----------------------------------------------------------------------------------------


class Clock:
    """Stands in for time: threads sleep at once, and what they slept is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.used, self.slept = 0.0, 0.0, list[float]()
        monkeypatch.setattr(pace, "monotonic", lambda: self.now)
        monkeypatch.setattr(pace, "thread_time", lambda: self.used)
        monkeypatch.setattr(pace, "sleep", self.slept.append)

    def work(self, seconds: float, cores: float = 1.0) -> None:
        self.now += seconds
        self.used += cores * seconds


def test_a_thread_rests_after_a_burst_only_while_steps_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, paced = Clock(monkeypatch), Pace(enabled=True)

    def burst(seconds: float) -> list[float]:
        clock.used += seconds
        clock.slept.clear()
        paced.rest()
        return clock.slept

    paced.look()
    clock.work(0.05, cores=0.01)  # the engine's thread waits for a fetch
    paced.look()
    clock.work(pace.SOON / 2)
    paced.look()  # it looks twice
    assert burst(1e-3) == []
    clock.work(0.01)  # it computes a step
    paced.look()
    burst(1e-3)
    assert burst(1e-3) == [pytest.approx(pace.REST * 1e-3)]
    assert burst(pace.LEAST_BURST / 2) == []
    assert burst(1.0) == [pace.LONGEST]
    clock.now += 2 * pace.LASTS  # and is idle
    assert burst(1e-3) == []
    paced.enabled = False
    clock.work(0.01)
    paced.look()
    assert burst(1e-3) == []


class Resting(Pace):
    """Counts the times at which a thread may rest."""

    rests = 0

    def rest(self) -> None:
        self.rests += 1


def test_reading_writing_and_trimming_rest_after_each_few_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "AT_ONCE", 32)
    folder = Folder.open(tmp_path, "{}", (16,), 1 << 20)
    slots = Slots.of(16, 0, 1 << 15)
    buffers = [slots.take() for _ in range(8)]
    rest = Resting()
    writes = [Write((bytes([i]) * 16, 0), 16 * i, each) for i, each in enumerate(buffers)]
    written = folder.parts.write(writes, rest.rest)
    assert rest.rests == 4, "two parts are written at once"
    rest = Resting()
    reader = Files(folder.parts, pace=rest)
    reader.read([Read(write.part, place, write.buffer) for write, place in written if place])
    left = len(buffers)
    while left:
        assert select([reader.descriptor], [], [], 30)[0]
        left -= len(reader.take())
    for buffer in buffers:
        slots.give(buffer)
    reader.trim(slots)
    reader.finish()
    assert rest.rests == 4 + 8, "and what is trimmed is one buffer"
    reader.close()
    folder.close()


@pytest.mark.parametrize("spare", [False, True])
def test_threads_rest_where_a_step_needs_their_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: bool
) -> None:
    count = torch.get_num_threads() + files.READERS + spare
    cores = set(range(count))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
    need = StoreNeed(layout="{}", sizes=(16,), folder=tmp_path, folder_limit=1 << 20)
    index, mover = build(need)
    assert isinstance(index, Store) and index.files is not None
    index.register([[torch.zeros(8, 16, dtype=torch.uint8)]])
    assert index.files.pace.enabled is not spare
    mover.close()


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
