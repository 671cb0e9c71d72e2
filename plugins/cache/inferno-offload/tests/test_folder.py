"""Folders of other layouts: what they hold, and which of them makes room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from inferno.errors import OptionError
from inferno_offload.folder import Folder, survey
from inferno_offload.parts import Write
from inferno_offload.slots import Buffer

PART = (bytes(16), 0)


def folder(parent: Path, layout: str, limit: int = 1 << 20) -> Folder:
    return Folder.open(parent, layout, (8,), limit)


def write_one(store: Folder) -> None:
    offset = store.free.take(8)
    assert offset == 0
    work = Write(PART, offset, Buffer(torch.ones(8, dtype=torch.uint8)))
    ((_, place),) = store.parts.write([work])
    assert place is not None
    store.places[PART] = place


def age(path: Path, seconds: float) -> None:
    """Let nothing of a folder be newer."""
    for each in [path, *path.rglob("*")]:
        os.utime(each, (seconds, seconds))


def test_the_folder_used_longest_ago_makes_room_first(tmp_path: Path) -> None:
    paths = list[Path]()
    for layout in ("a", "b"):
        store = folder(tmp_path, layout)
        write_one(store)
        store.close()
        age(store.path, 1000 + len(paths))
        paths.append(store.path)
    again = folder(tmp_path, "a")
    assert again.places.keys() == {PART}
    again.close()
    os.utime(paths[0], (1, 1))  # as long as its files are newer
    sizes = [each.nbytes for each in survey(tmp_path)]
    folder(tmp_path, "c", 2 * max(sizes)).close()
    assert paths[0].exists() and not paths[1].exists()


def test_what_is_no_folder_of_blocks_is_not_surveyed(tmp_path: Path) -> None:
    (tmp_path / "blocks-file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "blocks-link").symlink_to(tmp_path / "other", target_is_directory=True)
    (tmp_path / "blocks-empty").mkdir()
    (tmp_path / "blocks-binary").mkdir()
    (tmp_path / "blocks-binary" / "layout.json").write_bytes(b"\xff")
    by_name = {each.path.name: each for each in survey(tmp_path)}
    assert by_name.keys() == {"blocks-empty", "blocks-binary"}
    assert all(each.layout == "" for each in by_name.values())
    assert by_name["blocks-binary"].nbytes == 1 and by_name["blocks-empty"].nbytes == 0


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"", b"[]", b"[" * 100_000])
def test_a_layout_that_was_damaged_is_written_again(tmp_path: Path, damage: bytes) -> None:
    store = folder(tmp_path, '{"dtype": "a"}')
    write_one(store)
    store.close()
    (store.path / "layout.json").write_bytes(damage)
    again = folder(tmp_path, '{"dtype": "a"}')
    assert again.places.keys() == {PART} and survey(tmp_path)[0].layout == '{"dtype": "a"}'
    again.close()


def test_on_a_full_disk_all_other_layouts_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, older = folder(tmp_path, '{"dtype": "a"}'), folder(tmp_path, '{"dtype": "b"}')
    older.close()
    replace = os.replace

    def full(*args: Any) -> None:
        if older.path.exists():
            raise OSError(28, "No space left on device")
        replace(*args)

    monkeypatch.setattr(os, "replace", full)
    folder(tmp_path, '{"dtype": "c"}').close()
    assert used.path.exists() and not older.path.exists()
    used.close()


def test_a_folder_that_could_not_be_opened_is_not_in_use(tmp_path: Path) -> None:
    store = folder(tmp_path, "{}")
    store.close()
    (parts := store.path / "data" / "parts").unlink()
    parts.mkdir()
    with pytest.raises(OptionError, match="Is a directory"):
        folder(tmp_path, "{}")
    parts.rmdir()
    folder(tmp_path, "{}").close()


def test_a_survey_of_a_file_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="Not a directory"):
        survey(tmp_path / "file")
