"""Memory that both ends of a link map."""

from __future__ import annotations

import fcntl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferno_disaggregated import shared_memory
from inferno_disaggregated.shared_memory import Arena


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=60))
def test_runs_of_shared_memory_never_overlap(moves: list[tuple[bool, int]]) -> None:
    arena = Arena.create(64 << 10)
    assert arena is not None
    taken = list[tuple[int, int]]()
    for takes, size in moves:
        if takes and (offset := arena.take(size)) is not None:
            assert offset + size <= arena.nbytes
            assert all(offset + size <= at or at + n <= offset for at, n in taken)
            taken.append((offset, size))
        elif not takes and taken:
            arena.give_back(*taken.pop(size % len(taken)))
    for run in taken:
        arena.give_back(*run)
    assert arena._free == [(0, arena.nbytes)]
    arena.close()


def test_memory_is_for_its_owner_and_its_name_goes() -> None:
    arena = Arena.create(4096)
    assert arena is not None
    file = shared_memory.FOLDER / arena.name
    assert file.stat().st_mode & 0o777 == 0o600
    offset = arena.take(10)
    assert offset is not None
    seen = shared_memory.attach(arena.name, arena.nbytes)
    assert seen is not None
    arena.hide()
    arena.view(offset, 10)[:] = 7
    assert seen[:10].tolist() == [7] * 10 and not seen.flags.writeable
    assert not file.exists()
    arena.close()
    assert seen[:10].tolist() == [7] * 10, "what is mapped stays"


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "inferno-link-x", "", "inferno-link-" + "0" * 32]
)
def test_other_memory_is_not_mapped(name: str) -> None:
    assert shared_memory.attach(name, 4096) is None


def test_memory_of_another_size_is_not_mapped() -> None:
    arena = Arena.create(4096)
    assert arena is not None and shared_memory.attach(arena.name, 8192) is None
    arena.close()


def test_what_a_crash_has_left_behind_is_removed() -> None:
    arena = Arena.create(4096)
    assert arena is not None
    shared_memory.remove_stale()
    assert (shared_memory.FOLDER / arena.name).exists(), "its process runs"
    fcntl.flock(arena._file, fcntl.LOCK_UN)
    shared_memory.remove_stale()
    assert not (shared_memory.FOLDER / arena.name).exists()
