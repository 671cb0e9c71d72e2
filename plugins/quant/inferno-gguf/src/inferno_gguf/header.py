"""Writes the header of a GGUF file: version 3, little-endian.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inferno_gguf.ggml import BlockType
from inferno_gguf.reader import MAGIC

ALIGNMENT = 32
"""The offset of a tensor is divisible by this, in bytes."""
_VERSION = 3
_KINDS = {"u8": 0, "u16": 2, "i32": 5, "u32": 4, "f32": 6, "bool": 7, "str": 8, "u64": 10}
_ARRAY = 9
_STRUCTS = {"u8": "<B", "u16": "<H", "i32": "<i", "u32": "<I", "f32": "<f", "u64": "<Q"}


@frozen
class Typed:
    """A metadata value with its type in the file: "u16", "i32"; a list is an array of it."""

    kind: str
    value: Any


Metadata = Mapping[str, Any]
"""Values by key: str, bool, int (u32), float (f32), lists of one of these, or `Typed`."""


@frozen
class StoredTensor:
    """A tensor of the file."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    """As torch has it: the last dimension is contiguous."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.type.values * self.type.nbytes


def header(
    metadata: Metadata, tensors: Sequence[StoredTensor]
) -> tuple[bytes, dict[str, tuple[int, int]], int]:
    """Return what comes before the tensors, the offset and bytes of each tensor, and the bytes of
    the whole file."""
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset, offsets = 0, dict[str, int]()
    for tensor in tensors:
        dims = tensor.shape[::-1] or (1,)
        parts += [_text(tensor.name), struct.pack(f"<I{len(dims)}Q", len(dims), *dims)]
        parts.append(struct.pack("<IQ", tensor.type.number, offset))
        offsets[tensor.name] = offset
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    start = b"".join(parts)
    start += bytes(-len(start) % ALIGNMENT)
    places = {t.name: (len(start) + offsets[t.name], t.nbytes) for t in tensors}
    return start, places, len(start) + offset


def _value(value: Any) -> bytes:
    if isinstance(value, list) or (isinstance(value, Typed) and isinstance(value.value, list)):
        items = value if isinstance(value, list) else value.value
        kind = value.kind if isinstance(value, Typed) else _kind(items[0] if items else "")
        encoded = b"".join(_plain(kind, item) for item in items)
        return struct.pack("<IIQ", _ARRAY, _KINDS[kind], len(items)) + encoded
    kind = value.kind if isinstance(value, Typed) else _kind(value)
    plain = value.value if isinstance(value, Typed) else value
    return struct.pack("<I", _KINDS[kind]) + _plain(kind, plain)


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "u32" if 0 <= value < 1 << 32 else "i32" if value < 0 else "u64"
        case float():
            return "f32"
        case str():
            return "str"
    raise TypeError(f"GGUF files have no {type(value).__name__}")


def _plain(kind: str, value: Any) -> bytes:
    if kind == "str":
        return _text(value)
    return bytes([bool(value)]) if kind == "bool" else struct.pack(_STRUCTS[kind], value)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
