"""A model in several files, and which files are models at all."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from gguf_headers import U32, pair, raw, tensor

from inferno.errors import CheckpointError
from inferno_gguf.files import matches, open_files


def shard(
    folder: Path,
    number: int,
    count: int,
    *,
    of: int | None = None,
    said: int | None = None,
    total: int = 2,
) -> Path:
    """Shard `number` of `count`, holding one tensor. `of` and `said` are what its metadata says
    instead."""
    pairs = [
        pair("split.no", U32, struct.pack("<I", number if said is None else said)),
        pair("split.count", U32, struct.pack("<I", count if of is None else of)),
        pair("split.tensors.count", U32, struct.pack("<I", total)),
    ]
    file = raw(folder, pairs, [tensor(f"t{number}")], 32)
    return file.rename(folder / f"model-{number + 1:05}-of-{count:05}.gguf")


def test_all_shards_are_opened_whichever_is_named(tmp_path: Path) -> None:
    paths = [shard(tmp_path, 0, 2), shard(tmp_path, 1, 2)]
    for named in (*paths, tmp_path):
        assert matches(named)
        assert [sorted(f.tensors) for f in open_files(named)] == [["t0"], ["t1"]]


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (None, "00002-of-00002.gguf is missing"),
        ({"of": 3}, "part 2 of 3"),
        ({"said": 0}, "part 1 of 2"),
        ({"said": 2**32 - 1}, "part 4294967296 of 2"),
        ({}, "hold 2 tensors, not 9"),
    ],
)
def test_shards_that_do_not_belong_together(
    second: dict[str, Any] | None, complaint: str, tmp_path: Path
) -> None:
    first = shard(tmp_path, 0, 2, total=9 if second == {} else 2)
    if second is not None:
        shard(tmp_path, 1, 2, **second)
    with pytest.raises(CheckpointError, match=complaint) as caught:
        open_files(first)
    assert caught.value.remedy


@pytest.mark.parametrize("count", [3, 100_000, 2**32 - 1])
def test_a_shard_under_another_name(count: int, tmp_path: Path) -> None:
    file = shard(tmp_path, 0, 2, of=count)
    with pytest.raises(CheckpointError, match=f"one of {count} parts, but not named as such"):
        open_files(file)
    with pytest.raises(CheckpointError, match=f"one of {count} parts, but not named as such"):
        open_files(file.rename(tmp_path / "renamed.gguf"))


def test_a_folder_of_several_models_names_them(tmp_path: Path) -> None:
    raw(tmp_path).rename(tmp_path / "a.gguf")
    raw(tmp_path).rename(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF models: a\.gguf, b\.gguf"):
        open_files(tmp_path)


def test_a_file_is_known_by_its_first_bytes_too(tmp_path: Path) -> None:
    blob = raw(tmp_path).rename(tmp_path / "2f6a1d")
    assert matches(blob) and len(open_files(blob)) == 1
    (tmp_path / "model.safetensors").touch()
    assert not matches(tmp_path), "a folder that another format reads"
