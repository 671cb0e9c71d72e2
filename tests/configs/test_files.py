"""What a checkpoint's folder may have instead of files: each ends in one sentence, and none is
waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from inferno.builtin.safetensors import SafetensorsCheckpoint
from inferno.configs.files import MAX_CONFIG, contents, opened
from inferno.errors import CheckpointError, RequestError
from inferno.llm.weights import weights_file

NAMES = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
    "modules.json",
)


def one_sentence(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsCheckpoint.open(folder).text()
    assert "\n" not in caught.value.cause and caught.value.remedy
    return caught.value.cause


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    header = b"{}"
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    SafetensorsCheckpoint.open(tmp_path).text()
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_named_pipe_among_the_files_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "a named pipe, not a regular file" in one_sentence(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_to_a_device_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero")
    assert "a device, not a regular file" in one_sentence(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_to_itself_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(name)
    assert "symbolic links" in one_sentence(folder)


def test_a_socket_is_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "tokenizer.json"))
        assert "a socket" in one_sentence(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_of_absurd_size_is_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("wb") as stream:
        stream.truncate(MAX_CONFIG + 1)
    assert "more than 64 MiB" in one_sentence(folder)


def test_a_pipe_in_place_of_the_whole_model_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match="named pipe"):
        opened(pipe)
    with pytest.raises(CheckpointError, match="named pipe"):
        SafetensorsCheckpoint.of_tensors(tmp_path)


def test_a_file_and_a_link_to_it_are_read(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"text")
    link.symlink_to("a")
    assert contents(file) == contents(link) == b"text"
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        contents(tmp_path / "c")


@pytest.mark.parametrize("path", ["/tmp/\ud800.safetensors", "/tmp/a\0b"])
def test_weights_are_not_updated_from_what_cannot_be_a_name(path: str) -> None:
    with pytest.raises(RequestError, match="cannot be the name of a file"):
        weights_file(path)
