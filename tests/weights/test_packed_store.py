"""The store of packed weights: whole files or none, whatever is found in its folder."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferno.plan.packed_folder import default_folder
from inferno.weights.packed import DamagedFileError, PackedFile, PackedStore, Part
from inferno.weights.packed.digest import computed, remembered, state
from inferno.weights.packed.folder import clean

KEY = {"files": {"model.safetensors": "12ab"}, "providers": {"a": "1"}}


def part(name: str, *pieces: bytes) -> Part:
    return Part(name, {"shape": [2, 3], "of": name}, [memoryview(piece) for piece in pieces])


PARTS = [part("a", b"abc", b"def"), part("b", bytes(range(256)) * 100), part("c", b"x" * 4096)]


@pytest.fixture
def store(tmp_path: Path) -> PackedStore:
    return PackedStore(tmp_path / "cache" / "packed")


def content(file: PackedFile) -> dict[str, bytes]:
    return {name: bytes(file.mapped(name)) for name in file.parts}


def written(store: PackedStore, key: dict[str, Any] = KEY, parts: list[Part] = PARTS) -> Path:
    path = store.write(key, {"model": "toy"}, parts)
    assert path is not None
    return path


def test_what_is_written_is_read(store: PackedStore) -> None:
    written(store)
    with store.open(KEY) or pytest.fail("it was written") as file:
        assert content(file) == {"a": b"abcdef", "b": bytes(range(256)) * 100, "c": b"x" * 4096}
        assert file.parts["b"].about == {"shape": [2, 3], "of": "b"}
        assert all(place.offset % 4096 == 0 for place in file.parts.values())
        tail = bytearray(3)
        file.read_into("a", memoryview(tail), 3)
        assert tail == b"def" and file.damage() is None


def test_a_link_where_a_dead_writer_left_its_file_is_not_followed(store: PackedStore) -> None:
    path = written(store)
    (target := path.with_name("elsewhere")).write_bytes(b"")
    (link := path.with_name(".toy.part")).symlink_to(target)
    os.utime(link, (0, 0), follow_symlinks=False)
    clean(path.parent)
    assert link.is_symlink(), "what writers leave are files: this is another's"
    (left := path.with_name(".old.part")).write_bytes(b"")
    os.utime(left, (0, 0))
    clean(path.parent)
    assert not left.exists() and target.exists()


def test_another_key_finds_nothing(store: PackedStore) -> None:
    written(store)
    assert store.open({**KEY, "providers": {"a": "2"}}) is None


def test_a_file_under_another_keys_name_is_not_used(store: PackedStore) -> None:
    path, other = written(store), {"other": "key"}
    written(store, other)
    shutil.copy(path, store._path(other))
    assert store.open(other) is None


def test_what_was_mapped_outlives_the_file(store: PackedStore) -> None:
    path = written(store)
    file = store.open(KEY)
    assert file is not None
    view = file.mapped("b")
    file.close()
    path.unlink()
    assert bytes(view) == bytes(range(256)) * 100


@pytest.mark.parametrize("nbytes", [0, 7, 47, 60, 5000, -1])
def test_a_truncated_file_is_removed(store: PackedStore, nbytes: int) -> None:
    path = written(store)
    os.truncate(path, nbytes % path.stat().st_size)
    assert store.open(KEY) is None
    assert not path.exists()


@pytest.mark.parametrize("position", [0, 8, 15, 16, 47, 48, 90])
def test_a_changed_header_is_noticed_when_the_file_is_opened(
    store: PackedStore, position: int
) -> None:
    path = written(store)
    flip(path, position)
    assert store.open(KEY) is None
    assert not path.exists()


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_changed_part_is_noticed_by_the_whole_check(store: PackedStore) -> None:
    path = written(store)
    with PackedFile.open(path) as file:
        offset = file.parts["b"].offset
    flip(path, offset + 77)
    [entry] = store.entries()
    assert entry.damage is None, "the quick check reads the header only"
    assert store.damage(entry.name) == "the checksum of b is wrong"


def test_random_bytes_are_refused(store: PackedStore) -> None:
    path = written(store)
    for length in (48, 4096):
        path.write_bytes(os.urandom(length))
        with pytest.raises(DamagedFileError):
            PackedFile.open(path)


def test_a_symbolic_link_is_not_followed(store: PackedStore, tmp_path: Path) -> None:
    path = written(store)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert store.open(KEY) is None
    assert elsewhere.exists()
    written(store)
    assert not path.is_symlink()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_not_used(store: PackedStore, mode: int) -> None:
    path = written(store)
    path.chmod(mode)
    assert store.open(KEY) is None


def test_a_file_of_another_user_is_not_used(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, user = written(store), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(DamagedFileError, match="another user"):
        PackedFile.open(path)
    assert store.open(KEY) is None
    assert store.write(KEY, {}, PARTS) is None
    assert path.exists()


def test_a_folder_that_others_can_write_is_not_used(store: PackedStore) -> None:
    written(store)
    store.folder.chmod(0o770)
    assert store.open(KEY) is None
    assert store.write(KEY, {}, PARTS) is None


def test_the_folder_and_its_files_are_private(store: PackedStore) -> None:
    path = written(store)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = PackedStore(tmp_path / "file" / "packed")
    assert store.open(KEY) is None
    assert store.write(KEY, {}, PARTS) is None
    assert store.entries() == []


class StopError(Exception):
    """Raised by a test's `go_on`."""


def stopping() -> Iterator[None]:
    yield
    raise StopError


def test_an_interrupted_write_leaves_the_old_file(store: PackedStore) -> None:
    path = written(store)
    before = path.read_bytes()
    with pytest.raises(StopError):
        store.write(KEY, {}, PARTS, stopping())
    assert [p.name for p in store.folder.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_old_file(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(store)
    before = path.read_bytes()

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert store.write(KEY, {}, PARTS) is None
    assert [p.name for p in store.folder.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_disk_with_little_space_is_left_alone(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert store.write(KEY, {}, PARTS) is None


def test_the_file_of_a_writer_that_died_is_removed_and_a_living_ones_is_not(
    store: PackedStore,
) -> None:
    written(store)
    dead = store.folder / ".x.packed.0123.part"
    dead.write_bytes(b"half")
    os.utime(dead, (0, 0))

    def between() -> Iterator[None]:
        yield
        written(store, {"another": "model"})  # cleans up, while this file is being written
        while True:
            yield

    assert store.write(KEY, {}, PARTS, between()) is not None
    assert not dead.exists()
    assert len(store.entries()) == 2


def _write(folder: Path, byte: int, barrier: Any) -> None:
    store = PackedStore(folder)
    barrier.wait(60)
    for _ in range(20):
        assert store.write(KEY, {}, [part("a", bytes([byte]) * 100_000)]) is not None
        file = store.open(KEY)
        assert file is not None and file.damage() is None


def test_concurrent_writers_and_readers_see_whole_files(store: PackedStore) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    writers = [context.Process(target=_write, args=(store.folder, i, barrier)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    [entry] = store.entries()
    assert entry.damage is None and store.damage(entry.name) is None
    assert len(list(store.folder.iterdir())) == 1


def test_the_files_used_longest_ago_make_room(tmp_path: Path) -> None:
    store = PackedStore(tmp_path / "packed", limit=100_000)
    keys = [{"model": number} for number in range(3)]
    for number, key in enumerate(keys[:2]):
        path = written(store, key, [part("a", b"x" * 40_000)])
        os.utime(path, (number, number))
    used = store.open(keys[0])
    assert used is not None
    used.close()
    written(store, keys[2], [part("a", b"x" * 40_000)])
    assert [store.open(key) is not None for key in keys] == [True, False, True]
    assert store.write({"large": 1}, {}, [part("a", b"x" * 200_000)]) is None
    assert len(store.entries()) == 2, "what cannot fit removes nothing"


def test_a_file_that_another_process_removes_first_makes_room_too(tmp_path: Path) -> None:
    class Shared(PackedStore):
        def remove(self, name: str) -> None:
            PackedStore(self.folder).remove(name)
            super().remove(name)

    store = Shared(tmp_path / "packed", limit=100_000)
    for number in range(3):
        written(store, {"model": number}, [part("a", b"x" * 40_000)])
    assert len(store.entries()) == 2


def test_entries_are_listed_and_removed_by_name(store: PackedStore) -> None:
    path = written(store)
    (store.folder / "damaged.packed").write_bytes(b"")
    by_name = {entry.name: entry for entry in store.entries()}
    assert by_name[path.stem].about == {"model": "toy"} and by_name[path.stem].damage is None
    assert by_name["damaged"].damage == store.damage("damaged") == "it has 0 bytes"
    store.remove(path.stem)
    assert [entry.name for entry in store.entries()] == ["damaged"]


def test_a_name_cannot_leave_the_folder(store: PackedStore, tmp_path: Path) -> None:
    written(store)
    outside = tmp_path / "outside.packed"
    outside.write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        store.remove("../../outside")
    assert outside.exists()


def test_the_folder_follows_xdg_cache_home(tmp_path: Path) -> None:
    assert default_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "inferno" / "packed"
    usual = Path("~/.cache/inferno/packed").expanduser()
    assert default_folder({}) == usual
    assert default_folder({"XDG_CACHE_HOME": "relative"}) == usual, "the specification says so"


# --- the content hash of files --------------------------------------------------------------------


def forever() -> Iterator[None]:
    while True:
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    return file


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file was changed long ago."""
    monkeypatch.setattr("inferno.weights.packed.digest._SETTLED_NS", -(10**18))


def hashed(model: Path, folder: Path) -> list[str] | None:
    folder.mkdir(exist_ok=True)
    return computed([model], folder, {model: state(model)}, forever())


def test_a_hash_is_remembered_until_the_file_changes(
    model: Path, tmp_path: Path, settled: None
) -> None:
    folder = tmp_path / "memos"
    assert remembered([model], folder) is None
    digest = hashed(model, folder)
    assert digest is not None and remembered([model], folder) == digest
    times = model.stat()
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same mtime
    assert remembered([model], folder) is None
    again = hashed(model, folder)
    assert again is not None and again != digest


def test_a_replaced_file_is_hashed_again(model: Path, tmp_path: Path, settled: None) -> None:
    folder, times = tmp_path / "memos", model.stat()
    hashed(model, folder)
    other = tmp_path / "other"
    other.write_bytes(b"WEIGHTS")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(model)
    assert remembered([model], folder) is None


def test_a_file_that_changed_since_it_was_opened_has_no_hash(model: Path, tmp_path: Path) -> None:
    before = {model: state(model)}
    model.write_bytes(b"longer than before")
    assert computed([model], tmp_path, before, forever()) is None


def test_a_file_that_changed_a_moment_ago_is_not_remembered(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "memos"
    assert hashed(model, folder) is not None
    assert remembered([model], folder) is None


def test_a_hash_is_told_where_it_cannot_be_remembered(
    model: Path, tmp_path: Path, settled: None
) -> None:
    digest = hashed(model, tmp_path / "memos")
    remembers, cannot = tmp_path / "memos", tmp_path / "none"
    written = next(remembers.iterdir()).stat().st_ino
    assert (
        hashed(model, remembers)
        == digest
        == computed([model], cannot, {model: state(model)}, forever())
    )
    assert next(remembers.iterdir()).stat().st_ino == written, "it is not remembered twice"


@pytest.mark.parametrize("memo", [b"", b"[]", b"{}", b'{"state": null}', json.dumps(3).encode()])
def test_a_damaged_memo_is_ignored(model: Path, tmp_path: Path, settled: None, memo: bytes) -> None:
    folder = tmp_path / "memos"
    digest = hashed(model, folder)
    [file] = folder.glob("*.memo")
    file.write_bytes(memo)
    assert remembered([model], folder) is None
    assert hashed(model, folder) == digest
