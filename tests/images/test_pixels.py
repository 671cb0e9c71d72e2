"""Prepared images in shared memory: there while they are needed, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferno.errors import InfernoError
from inferno.images.pixels import Picture, PixelFiles, Prepared, folder_of, made_folder, write


def held(files: PixelFiles, name: int, size: int = 100) -> Picture:
    digest = bytes([name]) * 16
    write(files.path_of(digest), b"x" * size)
    picture = files.adopt(Prepared(digest, (1, 2, 2), 1, size))
    assert picture is not None
    return picture


def test_a_file_lives_as_long_as_its_picture_and_then_while_there_is_room() -> None:
    files = PixelFiles(250)
    one, two, three = (held(files, name) for name in (1, 2, 3))
    paths = [Path(each.path) for each in (one, two, three)]
    assert all(path.exists() for path in paths), "in use, whatever they take"
    del one, two, three
    assert [path.exists() for path in paths] == [False, True, True], "the oldest makes room"
    files.close()
    assert not files.folder.exists()


def test_a_picture_that_comes_again_is_found() -> None:
    files = PixelFiles(1000)
    digest = bytes([1]) * 16
    assert files.find(digest) is None
    held(files, 1)
    picture = files.find(digest)
    assert picture is not None and [part.start for part in picture.at(7)] == [7]
    again = files.find(digest)
    del picture
    assert again is not None and Path(again.path).exists()
    files.close()


def test_a_picture_with_text_between_its_rows_is_a_part_for_each() -> None:
    picture = Picture(bytes(16), (1, 2, 3), 6, "/path")
    parts = [*picture.at(10, [8, None, None, None, 9, 9, None, None, None, 7])]
    assert [(part.start, part.stop, part.first) for part in parts] == [(11, 14, 0), (16, 19, 3)]
    assert {(part.digest, part.grid, part.path) for part in parts} == {
        (picture.digest, picture.grid, picture.path)
    }


def test_a_file_that_was_removed_meanwhile_is_not_adopted() -> None:
    files = PixelFiles(1000)
    assert files.adopt(Prepared(bytes(16), (1, 2, 2), 1, 100)) is None
    files.close()


def test_only_this_user_may_read_them() -> None:
    files = PixelFiles(1000)
    for folder in (files.folder, files.folder.parent):
        assert folder.stat().st_mode & 0o077 == 0
    files.close()


def test_a_folder_of_others_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InfernoError, match="another user's"):
        made_folder(tmp_path / "open")


def test_a_full_memory_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InfernoError, match="no room"):
        write(tmp_path / "none" / "file", b"x")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_start() -> None:
    code = (
        "import os, signal; from inferno.images.pixels import PixelFiles, write;"
        "files = PixelFiles(1000); write(files.folder / 'x', b'x'); print(files.folder);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    folder = Path(left.stdout.strip())
    assert folder.exists(), left.stderr
    PixelFiles(1000).close()
    assert not folder.exists() and not folder.parent.exists()


def test_what_others_need_stays() -> None:
    files = PixelFiles(1000)
    write(files.folder / "x", b"x")
    PixelFiles(1000).close()
    assert (files.folder / "x").exists()
    assert files.folder.parent == folder_of(os.getpid())
    files.close()
