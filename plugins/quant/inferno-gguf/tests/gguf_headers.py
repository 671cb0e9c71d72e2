"""Headers byte by byte, whether a writer would write them or not."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + items


def tensor(
    name: str = "t",
    dims: Sequence[int] = (8,),
    kind: int = 0,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims) if num_dims is None else num_dims, *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def raw(
    folder: Path,
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    version: int = 3,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
    magic: bytes = b"GGUF",
) -> Path:
    """A little-endian file of any header, and that many bytes of data."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join([*pairs, *tensors])
    file = folder / "model.gguf"
    file.write_bytes(header + b"\0" * (-len(header) % 32) + b"\0" * data)
    return file
