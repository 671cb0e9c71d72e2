"""Arranges tensors in safetensors files, in shards if they are large.

The format: https://github.com/huggingface/safetensors. Within a file, tensors are ordered by the
size of their elements, largest first, so that each is aligned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from inferno.builtin.safetensors import DTYPES
from inferno.contracts import DTYPE_BYTES, TensorInfo, WrittenFile

SHARD = 5_000_000_000
"""The usual most bytes of a file."""
INDEX = "model.safetensors.index.json"
_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}


def arranged(
    tensors: Mapping[str, TensorInfo], split: int | None
) -> tuple[list[WrittenFile], dict[str, bytes]]:
    """Return the files that hold the tensors, in their order, each of at most `split` bytes unless
    one tensor is larger; and the index, if there are several."""
    shards = list(_shards(tensors, split or SHARD))
    if len(shards) == 1:
        return [_file("model.safetensors", tensors, shards[0])], {}
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    files = [_file(name, tensors, shard) for name, shard in zip(names, shards, strict=True)]
    index = {
        "metadata": {"total_size": sum(info.nbytes for info in tensors.values())},
        "weight_map": {
            tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    return files, {INDEX: json.dumps(index, indent=2).encode() + b"\n"}


def _shards(tensors: Mapping[str, TensorInfo], most: int) -> Iterable[list[str]]:
    shard: list[str] = []
    nbytes = 0
    for name, info in tensors.items():
        if shard and nbytes + info.nbytes > most:
            yield shard
            shard, nbytes = [], 0
        shard.append(name)
        nbytes += info.nbytes
    yield shard


def _file(name: str, tensors: Mapping[str, TensorInfo], held: Iterable[str]) -> WrittenFile:
    ordered = sorted(held, key=lambda tensor: -DTYPE_BYTES[tensors[tensor].dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset, begins = 0, dict[str, int]()
    for tensor in ordered:
        info = tensors[tensor]
        begins[tensor] = offset
        header[tensor] = {
            "dtype": _NAMES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [offset, offset := offset + info.nbytes],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    start = len(encoded).to_bytes(8, "little") + encoded
    places = {t: (len(start) + begin, tensors[t].nbytes) for t, begin in begins.items()}
    return WrittenFile(name=name, start=start, places=places, nbytes=len(start) + offset)
