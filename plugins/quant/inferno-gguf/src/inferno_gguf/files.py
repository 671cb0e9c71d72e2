"""Finds the GGUF files of a model at a path: one, or all shards."""

from __future__ import annotations

import re
from pathlib import Path

from inferno.contracts import is_encoder_file
from inferno.errors import CheckpointError
from inferno_gguf.reader import DAMAGED, MAGIC, GgufFile

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_SHARDS = 1000


def matches(path: Path) -> bool:
    """Whether the path is a file with the GGUF suffix or magic, or a folder of them without
    safetensors."""
    if path.is_dir():
        return any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))
    return path.is_file() and (path.suffix == ".gguf" or _begins_as_gguf(path))


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file has the GGUF magic: the hub's cache names files by checksum."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def open_files(path: Path) -> list[GgufFile]:
    """Open the model's files, the one with the metadata first. Raises CheckpointError if shards are
    missing or do not match."""
    named = first_of(path)
    opened = GgufFile.open(named)
    count = _count(opened, "split.count")
    if count <= 1:
        return [opened]
    shard = _SHARD.fullmatch(named.name)
    if shard is None or int(shard["count"]) != count or count > MAX_SHARDS:
        raise CheckpointError(
            f"{named.name} is one of {count} parts, but not named as such",
            f"All parts must be in one folder, named NAME-00001-of-{count:05}.gguf and so on.",
        )
    files = [
        _shard(named.with_name(f"{shard['stem']}-{i + 1:05}-of-{count:05}.gguf"), i, count)
        for i in range(count)
    ]
    stored, wanted = sum(len(f.tensors) for f in files), _count(files[0], "split.tensors.count")
    if stored != wanted:
        raise CheckpointError(
            f"{files[0].path.name} and its other parts hold {stored} tensors, not {wanted}", DAMAGED
        )
    return files


def _shard(path: Path, number: int, count: int) -> GgufFile:
    if not path.is_file():
        raise CheckpointError(
            f"{path.name} is missing", f"Fetch all {count} parts of the model into one folder."
        )
    file = GgufFile.open(path)
    place = _count(file, "split.no"), _count(file, "split.count")
    if place != (number, count):
        raise CheckpointError(f"{path.name} says it is part {place[0] + 1} of {place[1]}", DAMAGED)
    return file


def _count(file: GgufFile, key: str) -> int:
    value = file.metadata.get(key, 0)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{file.path.name}: {key} is {value!r}", DAMAGED)
    return value


def first_of(path: Path) -> Path:
    """Return the file at a path, or of the only model in a folder: the first shard. Raises
    CheckpointError if there are several."""
    return _only_model(path) if path.is_dir() else path


def _only_model(folder: Path) -> Path:
    names = [
        f
        for f in sorted(folder.glob("*.gguf"))
        if not is_encoder_file(f.name)
        and (not (s := _SHARD.fullmatch(f.name)) or int(s["number"]) == 1)
    ]
    if len(names) != 1:
        shown = ", ".join(f.name for f in names[:8]) or "no first part"
        raise CheckpointError(
            f"{folder} contains {len(names)} GGUF models: {shown}", "Give the path of one."
        )
    return names[0]
