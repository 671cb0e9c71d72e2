from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferno.builtin.safetensors import SafetensorsCheckpoint, matches, read_header
from inferno.errors import CheckpointError
from inferno.testing import CheckpointFormatTests


class TestOneFile(CheckpointFormatTests):
    format = "safetensors"

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        (folder / "config.json").write_text(json.dumps(config))
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


class TestNamedFile(TestOneFile):
    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        return super().write(folder, config, tensors) / "model.safetensors"


class TestSharded(CheckpointFormatTests):
    format = "safetensors"

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        (folder / "config.json").write_text(json.dumps(config))
        weight_map = {}
        for i, name in enumerate(tensors):
            file = f"model-{i % 2 + 1:05}-of-00002.safetensors"
            weight_map[name] = file
            save_file({n: tensors[n] for n, f in weight_map.items() if f == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder


# --- hostile headers ------------------------------------------------------------------------------


def raw(folder: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    """A safetensors file of any header, beside an empty config."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text("{}")
    return file


def entry(shape: list[Any], begin: Any, end: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 1 << 40, 3])
def test_a_header_longer_than_the_file_is_refused_before_it_is_read(
    length: int, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="model.safetensors"):
        read_header(raw(tmp_path, {}, length=length))


@pytest.mark.parametrize("content", [b"", b"1234567", b"\0" * 8, b"\xff" * 8])
def test_a_file_without_a_header_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="model.safetensors"):
        read_header(file)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ([], "not an object"),
        (b"{", "not JSON"),
        (b"[" * 50_000, "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        ({"a": 1}, "malformed"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "malformed"),
        ({"a": {"dtype": "F32", "shape": 4, "data_offsets": [0, 4]}}, "malformed"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, "malformed"),
        ({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, "unknown dtype"),
        ({"a": entry([1], 0, 4, dtype="F31")}, "unknown dtype"),
        ({"a": entry([-1], 0, 4)}, "invalid size"),
        ({"a": entry([-1, -1], 0, 4)}, "invalid size"),
        ({"a": entry([1.0], 0, 4)}, "invalid size"),
        ({"a": entry([True], 0, 4)}, "invalid size"),
        ({"a": entry(["1"], 0, 4)}, "invalid size"),
        ({"a": entry([1], -4, 0)}, "invalid size"),
        ({"a": entry([1], 4, 0)}, "bytes for"),
        ({"a": entry([2], 0, 4)}, "bytes for"),
        ({"a": entry([1 << 62, 1 << 62], 0, 4)}, "bytes for"),
        ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, "overlaps"),
        ({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, "overlaps"),
        ({"a": entry([1], 4, 8), "b": entry([2], 8, 16)}, "truncated: 8 bytes"),
        ({"a": entry([1 << 40], 0, 1 << 42)}, "truncated"),
    ],
)
def test_a_lying_header_is_refused(header: object, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read_header(raw(tmp_path, header, b"\0" * 8))


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    one, two = json.dumps(entry([1], 0, 4)), json.dumps(entry([1], 4, 8))
    with pytest.raises(CheckpointError, match="has a twice"):
        read_header(raw(tmp_path, f'{{"a": {one}, "a": {two}}}'.encode(), b"\0" * 8))


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("one", "two"):
        save_file({"a": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="one.safetensors and two.safetensors"):
        SafetensorsCheckpoint.open(tmp_path)


def test_an_empty_tensor_is_a_tensor(tmp_path: Path) -> None:
    assert read_header(raw(tmp_path, {"a": entry([0, 3], 0, 0)}))["a"].info.shape == (0, 3)


# --- hostile folders ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "."]
)
def test_an_index_that_names_a_file_outside_its_folder_is_refused(
    name: str, tmp_path: Path
) -> None:
    raw(tmp_path, {})
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    raw(folder, {})
    raw(folder / "sub", {})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError):
        SafetensorsCheckpoint.open(folder)


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{", "\udcff"]
)
def test_an_index_that_is_none_is_refused(index: str, tmp_path: Path) -> None:
    raw(tmp_path, {})
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(index, errors="surrogateescape")
    with pytest.raises(CheckpointError, match="index.json"):
        SafetensorsCheckpoint.open(tmp_path)


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    raw(tmp_path, {})
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="model-00002-of-00002.safetensors is missing"):
        SafetensorsCheckpoint.open(tmp_path)


@pytest.mark.parametrize("config", ["", "[]", "null", "{", "[" * 50_000])
def test_a_config_that_is_no_object_is_refused(config: str, tmp_path: Path) -> None:
    raw(tmp_path, {})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match="config.json"):
        SafetensorsCheckpoint.open(tmp_path)


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    raw(tmp_path, {})
    os.remove(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="has no config.json"):
        SafetensorsCheckpoint.open(tmp_path)


def test_a_file_that_changed_since_it_was_opened_is_an_error(tmp_path: Path) -> None:
    file = raw(tmp_path, {"a": entry([1], 0, 4)}, b"\0" * 4)
    checkpoint = SafetensorsCheckpoint.open(tmp_path)
    file.write_bytes(b"no longer a checkpoint")
    with pytest.raises(CheckpointError, match="model.safetensors"):
        checkpoint.read("a")


@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "notes.md"])
def test_other_files_are_not_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\0" * 16)
    assert not matches(tmp_path) and not matches(tmp_path / name)
