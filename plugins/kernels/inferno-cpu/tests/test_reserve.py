"""Memory that is faulted in while torch is imported: zeroed, disjoint, and freed if not taken."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

from inferno_cpu import reserve
from inferno_cpu.memory import pages

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux only")


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one NUMA node."""
    monkeypatch.setattr(reserve, "NODES", tmp_path)
    (tmp_path / "node0").mkdir()
    return tmp_path


def held(memory: mmap.mmap) -> int:
    """Return the resident bytes of this mapping."""
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    total = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split()[0]
        if "-" in name and not name.endswith(":"):
            begin, end = (int(n, 16) for n in name.split("-"))
            inside = begin < start + len(memory) and start < end
        elif inside and name == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def test_parts_are_zeroed_disjoint_and_page_aligned(near: Path) -> None:
    with reserve.reserved(8 * MIB):
        parts = [pages(n) for n in (5000, MIB, 1, 3 * MIB)]
        assert not any(part.any() for part in parts)
        assert all(part.data_ptr() % mmap.PAGESIZE == 0 for part in parts)
        for value, part in enumerate(parts, 1):
            part.fill_(value)
    assert [part.unique().tolist() for part in parts] == [[1], [2], [3], [4]]
    assert [part.numel() for part in parts] == [5000, MIB, 1, 3 * MIB]


def test_what_does_not_fit_is_mapped_separately(near: Path) -> None:
    with reserve.reserved(2 * MIB):
        assert reserve.current.get() is not None
        first, large, last = pages(MIB), pages(2 * MIB), pages(MIB)
        assert last.data_ptr() == first.data_ptr() + MIB
        assert not first.data_ptr() <= large.data_ptr() < first.data_ptr() + 2 * MIB
        assert not pages(MIB).any()
    assert reserve.current.get() is None


def test_what_is_not_taken_is_freed() -> None:
    pool = reserve.Reserve(32 * MIB)
    taken = pool.take(4 * MIB)
    assert taken is not None
    memory, start = taken
    pool._thread.join()
    memory[start : start + 4 * MIB] = b"x" * (4 * MIB)
    pool.release()
    assert memory[start : start + 4 * MIB] == b"x" * (4 * MIB)
    assert 4 * MIB <= held(memory) <= 8 * MIB  # all of it would be 32


def test_a_failed_load_leaves_no_reserve(near: Path) -> None:
    with pytest.raises(KeyError), reserve.reserved(8 * MIB):
        raise KeyError
    assert reserve.current.get() is None


def test_a_numa_machine_has_no_reserve(near: Path) -> None:
    (near / "node1").mkdir()
    with reserve.reserved(8 * MIB):
        assert reserve.current.get() is None
        assert pages(MIB).numel() == MIB


def test_a_reserve_does_not_import_torch() -> None:
    code = (
        "import sys, inferno_cpu.reserve as r\nwith r.reserved(1 << 20): pass\nassert "
        "'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_if_huge_pages_are_slow_small_ones_are_collapsed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reserve, "_SLOW_SECONDS", -1.0)
    collapsed: list[int] = []

    def watched(address: int, nbytes: int, advice: int) -> int:
        if advice == reserve._COLLAPSE:
            collapsed.append(nbytes)
        return advise(address, nbytes, advice)

    advise = reserve._madvise
    monkeypatch.setattr(reserve, "_madvise", watched)
    pool = reserve.Reserve(64 * MIB)
    taken = pool.take(48 * MIB)
    assert taken is not None
    memory, start = taken
    pool._thread.join()
    assert pool._small_from < start + 48 * MIB
    memory[start : start + 48 * MIB] = b"x" * (48 * MIB)
    pool.release()
    for thread in threading.enumerate():
        if thread.name == "inferno-cpu huge pages":
            thread.join(60)
    assert collapsed, "or the system cannot, and said so once"
    assert memory[start : start + 48 * MIB] == b"x" * (48 * MIB)


def test_nothing_is_collapsed_for_a_freed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def madvise(address: int, nbytes: int, advice: int) -> int:
        calls.append(advice)
        return 0

    monkeypatch.setattr(reserve, "_madvise", madvise)
    memory = mmap.mmap(-1, MIB)
    reserve._collapse(weakref.ref(memory), 0, range(1))
    gone = weakref.ref(memory)
    del memory
    reserve._collapse(gone, 0, range(1))
    assert len(calls) == 1
