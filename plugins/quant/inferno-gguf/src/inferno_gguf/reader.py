"""Reads the header of one GGUF file: metadata and tensor offsets. Allocates nothing by sizes that a
header only claims.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, the two
counts, key-value pairs, tensor descriptions, padding, data. Integers and floats are in
the file's byte order, which only the version reveals. A vocabulary is hundreds of thousands of
strings, so values are skipped when the file is opened and decoded on access.

Bounds: everything before the data ends within `MAX_HEADER` bytes and every length is compared with
what is left of them, so time and memory follow the file's size; arrays nest at most
`MAX_DEPTH` deep.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any, NoReturn

from attrs import frozen

from inferno.configs.files import opened
from inferno.errors import CheckpointError
from inferno_gguf.ggml import BY_NUMBER, BlockType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""2 and 3 do not differ in what we read; 1 had 32-bit counts."""
MAX_HEADER = 1 << 26
"""Maximum bytes before the data: four times those of the largest vocabulary in use."""
MAX_DEPTH = 4
"""Maximum depth of nested arrays. No known writer nests them."""
MAX_ITEMS = 1 << 22
"""Maximum elements of an array: ten times the merges of the largest vocabulary."""
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_DIMS = 4
MAX_NAME = 1 << 16
"""Maximum bytes of a key, by the format."""
DEFAULT_ALIGNMENT = 32

STRING, ARRAY = 8, 9
SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Metadata value type -> its struct code."""

DAMAGED = "The file is damaged or incomplete: download it again."


@frozen
class Stored:
    """A tensor's header. `shape` is outermost first, in values (not blocks)."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class Metadata(Mapping[str, Any]):
    """Key-value pairs, decoded on access: int, float, str, bool, and lists of them."""

    def __init__(self, cursor: _Cursor, spans: dict[str, tuple[int, int]]) -> None:
        self._cursor, self._spans = cursor, spans

    def __getitem__(self, key: str) -> Any:
        return self._cursor.within(*self._spans[key]).value()

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


@frozen
class GgufFile:
    """One opened file."""

    path: Path
    order: str
    """Byte order as in struct: "<" or ">"."""
    metadata: Metadata
    tensors: Mapping[str, Stored]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read and check the header. Raises CheckpointError."""
        try:
            with opened(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < 24 or stream.read(4) != MAGIC:
                    raise CheckpointError(
                        f"{path.name} is not a GGUF file", "Give a complete .gguf file."
                    )
                mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}", "Check the path and its permissions."
            ) from error
        with _explained(path):
            return cls._parse(path, mapped, size)

    @classmethod
    def _parse(cls, path: Path, mapped: mmap.mmap, size: int) -> GgufFile:
        order = ">" if mapped[4:6] == b"\0\0" else "<"
        cursor = _Cursor(path.name, mapped, order, 4, min(size, MAX_HEADER))
        version = cursor.number("I")
        if version not in VERSIONS:
            raise CheckpointError(
                f"{path.name} has the unsupported GGUF version {version}",
                "Convert it again with llama.cpp, to version 2 or 3.",
            )
        num_tensors, num_pairs = cursor.number("Q"), cursor.number("Q")
        cursor.expect(num_pairs, 14, MAX_PAIRS, "metadata pairs")
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(num_pairs):
            key = cursor.name("a metadata key")
            if key in spans:
                cursor.fail(f"the key {key!r} is stored twice")
            start = cursor.position
            cursor.skip_value()
            spans[key] = start, cursor.position
        metadata = Metadata(cursor, spans)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            cursor.fail(f"the alignment {alignment!r} is not a power of two of at least 8")
        cursor.expect(num_tensors, 25, MAX_TENSORS, "tensors")
        described = [_description(cursor) for _ in range(num_tensors)]
        start = -(-cursor.position // alignment) * alignment
        return cls(path, order, metadata, _placed(cursor, described, start, size, alignment))

    def pages_of(self, stored: Stored) -> tuple[mmap.mmap, int]:
        """Map the tensor's bytes, in the file's byte order, and return the map and their offset in
        it. The map is private: writes do not change the file."""
        before = stored.offset % mmap.ALLOCATIONGRANULARITY
        try:
            with self.path.open("rb") as stream:
                length, start = before + stored.nbytes, stored.offset - before
                return mmap.mmap(
                    stream.fileno(), length, access=mmap.ACCESS_COPY, offset=start
                ), before
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.path.name}: {stored.name} cannot be mapped: {error}", DAMAGED
            ) from error


def _description(cursor: _Cursor) -> Stored:
    """Read one tensor's entry, with its offset from the start of the data."""
    name = cursor.name("a tensor name")
    num_dims = cursor.number("I")
    if num_dims > MAX_DIMS:
        cursor.fail(f"{name} has {num_dims} dimensions, more than {MAX_DIMS}")
    shape = tuple(cursor.number("Q") for _ in range(num_dims))[::-1]
    number, offset = cursor.number("I"), cursor.number("Q")
    kind = BY_NUMBER.get(number)
    if kind is None:
        raise CheckpointError(
            f"{cursor.file}: {name} is of the unknown type {number}",
            "Upgrade inferno-gguf, or quantize the model again.",
        )
    if not all(shape):
        cursor.fail(f"{name} has the shape {shape}: no dimension can be 0")
    if (shape[-1] if shape else 1) % kind.values:
        cursor.fail(
            f"{name} has rows of {shape[-1] if shape else 1} values, but {kind.name} has blocks "
            f"of {kind.values}"
        )
    return Stored(name, kind, shape, offset, math.prod(shape) // kind.values * kind.nbytes)


def _placed(
    cursor: _Cursor, described: list[Stored], start: int, size: int, alignment: int
) -> dict[str, Stored]:
    """Map names to tensors, with offsets from the start of the file. Tensors must be within the
    file, aligned and disjoint."""
    tensors: dict[str, Stored] = {}
    end = start
    for stored in sorted(described, key=lambda s: s.offset):
        name, begin = stored.name, start + stored.offset
        if name in tensors:
            cursor.fail(f"the tensor {name} is stored twice")
        if stored.offset % alignment:
            cursor.fail(
                f"{name} begins at byte {stored.offset}, which is not divisible by {alignment}"
            )
        if begin < end:
            cursor.fail(f"{name} overlaps another tensor")
        end = begin + stored.nbytes
        if end > size:
            cursor.fail(f"the file is truncated: {name} ends at byte {end} of {size}")
        tensors[name] = Stored(name, stored.type, stored.shape, begin, stored.nbytes)
    return tensors


class _Cursor:
    """Reads consecutive values, never past `end`."""

    def __init__(
        self, file: str, content: mmap.mmap | bytes, order: str, position: int, end: int
    ) -> None:
        self.file, self.position = file, position
        self._content, self._order, self._end = content, order, end
        self._structs = {code: Struct(order + code) for code in SCALARS.values()}

    def within(self, start: int, end: int) -> _Cursor:
        """A cursor on a copy of these bytes: many small reads of a map take twice as long."""
        return _Cursor(self.file, self._content[start:end], self._order, 0, end - start)

    def fail(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self.file}: {what}", DAMAGED)

    def expect(self, count: int, least: int, most: int, what: str) -> None:
        """Fail if `count` items of at least `least` bytes exceed what is left, or if there are more
        than `most`."""
        room = min(most, (self._end - self.position) // least)
        if count > room:
            self.fail(f"it claims {count} {what}, but at most {room} are possible")

    def number(self, code: str) -> Any:
        struct = self._structs[code]
        if self.position + struct.size > self._end:
            self.fail("its header is truncated")
        [value] = struct.unpack_from(self._content, self.position)
        self.position += struct.size
        return value

    def text(self) -> str:
        length = self.number("Q")
        self.expect(length, 1, MAX_HEADER, "bytes of a string")
        raw = self._content[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._not_text(error) from error

    def _not_text(self, error: UnicodeDecodeError) -> CheckpointError:
        return CheckpointError(
            f"{self.file}: a string is not UTF-8: {error.object[:40]!r}", DAMAGED
        )

    def name(self, what: str) -> str:
        start = self.position
        if not 0 < self.number("Q") <= MAX_NAME:
            self.fail(f"{what} at byte {start} is empty or too long")
        self.position = start
        return self.text()

    def skip_value(self) -> None:
        kind = self.number("I")
        self._skip_array(1) if kind == ARRAY else self._skip(kind, 1)

    def _skip_array(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail(f"its arrays are nested more than {MAX_DEPTH} deep")
        kind, count = self.number("I"), self.number("Q")
        if kind != ARRAY:
            return self._skip(kind, count)
        self.expect(count, 12, MAX_ITEMS, "arrays in an array")
        for _ in range(count):
            self._skip_array(depth + 1)

    def _skip(self, kind: int, count: int) -> None:
        if kind == STRING:
            return self._skip_strings(count)
        size = self._struct(kind).size
        self.expect(count, size, MAX_ITEMS, "numbers in an array")
        self.position += count * size

    def _skip_strings(self, count: int) -> None:
        """The hot loop for vocabularies: a third of a million iterations."""
        self.expect(count, 8, MAX_ITEMS, "strings in an array")
        unpack, content, position, end = (
            self._structs["Q"].unpack_from,
            self._content,
            self.position,
            self._end,
        )
        for _ in range(count):
            position += 8 + unpack(content, position)[0]
            if position > end:
                self.fail("a string ends beyond the header")
        self.position = position

    def _struct(self, kind: int) -> Struct:
        if kind not in SCALARS:
            self.fail(f"a metadata value is of the unknown type {kind}")
        return self._structs[SCALARS[kind]]

    def value(self) -> Any:
        """Decode the value here. `skip_value` has checked its lengths."""
        kind = self.number("I")
        if kind == ARRAY:
            return self._array()
        return self.text() if kind == STRING else self.number(SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if kind == ARRAY:
            return [self._array() for _ in range(count)]
        if kind == STRING:
            return self._strings(count)
        struct = Struct(f"{self._order}{count}{SCALARS[kind]}")
        values = list(struct.unpack_from(self._content, self.position))
        self.position += struct.size
        return values

    def _strings(self, count: int) -> list[str]:
        unpack, content, position = self._structs["Q"].unpack_from, self._content, self.position
        strings = []
        try:
            for _ in range(count):
                length = unpack(content, position)[0]
                position += 8 + length
                strings.append(content[position - length : position].decode())
        except UnicodeDecodeError as error:
            raise self._not_text(error) from error
        self.position = position
        return strings


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Report lengths too large for struct or mmap as damage."""
    try:
        yield
    except (StructError, OverflowError) as error:
        raise CheckpointError(
            f"{path.name}: its header is truncated or has an impossible length ({error})", DAMAGED
        ) from error
