"""Headers: what is read, and what is refused before anything is allocated or looped over."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_headers import ARRAY, BOOL, F32, STRING, U8, U32, U64, array, pair, raw, tensor, text
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.errors import CheckpointError
from inferno_gguf import reader
from inferno_gguf.reader import GgufFile

repeatable = settings(deadline=None, derandomize=True, database=None)

HUGE = [2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def refused(path: Path, complaint: str = ".") -> None:
    """Refused by name and remedy, soon, and without memory."""
    started = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=complaint) as caught:
            GgufFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model.gguf" in caught.value.cause and caught.value.remedy
    assert peak < 4 << 20 and time.monotonic() - started < 10


# --- what is read ---------------------------------------------------------------------------------

VALUES: list[tuple[int, str, Any]] = [
    (0, "B", 255),
    (1, "b", -128),
    (2, "H", 65535),
    (3, "h", -3),
    (4, "I", 2**32 - 1),
    (5, "i", -5),
    (6, "f", 0.5),
    (7, "?", True),
    (10, "Q", 2**64 - 1),
    (11, "q", -(2**63)),
    (12, "d", 1e300),
]


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value(version: int, tmp_path: Path) -> None:
    pairs = [
        pair(f"one.{code}", kind, struct.pack(f"<{code}", value)) for kind, code, value in VALUES
    ]
    pairs += [
        pair(f"many.{code}", ARRAY, array(kind, 3, struct.pack(f"<3{code}", value, value, 0)))
        for kind, code, value in VALUES
    ]
    pairs += [
        pair("text", STRING, text("größe")),
        pair("texts", ARRAY, array(STRING, 3, text("a") + text("") + text("ü"))),
        pair("none", ARRAY, array(STRING, 0)),
        pair("nested", ARRAY, array(ARRAY, 2, array(U8, 2, b"\1\2") + array(STRING, 0))),
    ]
    metadata = GgufFile.open(raw(tmp_path, pairs, version=version)).metadata
    expected = {f"one.{code}": value for _, code, value in VALUES}
    expected |= {f"many.{code}": [value, value, 0] for _, code, value in VALUES}
    expected |= {"text": "größe", "texts": ["a", "", "ü"], "none": [], "nested": [[1, 2], []]}
    assert dict(metadata) == expected and len(metadata) == len(expected)


def test_tensors_lie_where_the_file_says(tmp_path: Path) -> None:
    tensors = [
        tensor("b", (32, 3), kind=8, offset=64),
        tensor("a", (2, 3, 4), offset=192),
        tensor("s", (), offset=0),
    ]
    file = GgufFile.open(
        raw(tmp_path, [pair("general.alignment", U32, struct.pack("<I", 64))], tensors, 64 * 5 + 32)
    )
    start = file.tensors["s"].offset
    assert start % 64 == 0
    layout = {
        name: (t.type.name, t.shape, t.offset - start, t.nbytes) for name, t in file.tensors.items()
    }
    assert layout == {
        "s": ("f32", (), 0, 4),
        "b": ("q8_0", (3, 32), 64, 102),
        "a": ("f32", (4, 3, 2), 192, 96),
    }


def test_the_other_byte_order(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_array("numbers", [1, 2, 3])
    writer.add_float32("half", 0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    file = GgufFile.open(tmp_path / "big.gguf")
    assert (
        dict(file.metadata) == {"general.architecture": "llama", "numbers": [1, 2, 3], "half": 0.5}
        and file.order == ">"
    )


@settings(repeatable, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=8),
            st.text(max_size=8)
            | st.integers(0, 255)
            | st.booleans()
            | st.lists(st.text(max_size=5), max_size=4),
        ),
        max_size=6,
        unique_by=lambda p: p[0],
    )
)
def test_what_gguf_py_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("written") / "model.gguf"
    writer = gguf.GGUFWriter(path, "any")
    expected = {"general.architecture": "any"}
    for key, value in pairs:
        if key == "general.architecture" or (isinstance(value, list) and not value):
            continue  # it writes no empty arrays
        match value:
            case str():
                writer.add_string(key, value)
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint8(key, value)
            case list():
                writer.add_array(key, value)
        if value != "":  # nor empty texts
            expected[key] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert dict(GgufFile.open(path).metadata) == expected


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF" + b"\0" * 19, b"GGML" + b"\0" * 40, b"\xff" * 40]
)
def test_files_that_are_no_gguf(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    refused(tmp_path / "model.gguf", "not a GGUF file")


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        GgufFile.open(tmp_path / "missing.gguf")


@pytest.mark.parametrize("version", [0, 1, 4, 0x01000000, 0xFFFFFFFF])
def test_other_versions(version: int, tmp_path: Path) -> None:
    refused(raw(tmp_path, version=version, data=64), "version")


@pytest.mark.parametrize("count", [1, 1000, *HUGE])
@pytest.mark.parametrize("which", ["num_pairs", "num_tensors"])
def test_counts_that_the_file_has_no_room_for(which: str, count: int, tmp_path: Path) -> None:
    counts: dict[str, Any] = {which: count}
    refused(raw(tmp_path, **counts), "possible|truncated")


@pytest.mark.parametrize("length", [100, *HUGE])
@pytest.mark.parametrize(
    "pairs",
    [
        lambda n: text(b"key", n),
        lambda n: pair("key", STRING, text("x", n)),
        lambda n: pair("key", ARRAY, array(STRING, 1, text("x", n))),
        lambda n: pair("key", ARRAY, array(STRING, 2, text("x", n) + text("y"))),
        lambda n: pair("key", ARRAY, array(STRING, n)),
        lambda n: pair("key", ARRAY, array(U8, n)),
        lambda n: pair("key", ARRAY, array(U64, n)),
        lambda n: pair("key", ARRAY, array(ARRAY, n, array(U8, 1, b"x"))),
    ],
)
def test_lengths_beyond_the_file(
    pairs: Callable[[int], bytes], length: int, tmp_path: Path
) -> None:
    refused(raw(tmp_path, [pairs(length)]))


@pytest.mark.parametrize("kind", [13, 255, 2**32 - 1])
def test_unknown_kinds_of_values(kind: int, tmp_path: Path) -> None:
    refused(raw(tmp_path, [pair("key", kind, b"\0" * 8)]), f"unknown type {kind}")
    refused(raw(tmp_path, [pair("key", ARRAY, array(kind, 1, b"\0" * 8))]), f"unknown type {kind}")


def test_arrays_in_arrays_in_arrays(tmp_path: Path) -> None:
    """A bomb: each level takes 12 bytes, and would take a call of its own."""
    bomb = array(ARRAY, 1) * 100_000 + array(U8, 0)
    refused(raw(tmp_path, [pair("key", ARRAY, bomb)]), "nested")


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([pair("a", U8, b"\1"), pair("a", U8, b"\2")], "'a' is stored twice"),
        ([pair("", U8, b"\1" * 20)], "empty or too long"),
        ([pair("k" * 70_000, U8, b"\1")], "empty or too long"),
        ([pair(b"\xff\xfe", U8, b"\1" * 20)], "not UTF-8"),
        ([pair("general.alignment", U32, struct.pack("<I", 0))], "alignment"),
        ([pair("general.alignment", U32, struct.pack("<I", 24))], "alignment"),
        ([pair("general.alignment", U32, struct.pack("<I", 4))], "alignment"),
        ([pair("general.alignment", F32, struct.pack("<f", 32))], "alignment"),
        ([pair("general.alignment", STRING, text("32"))], "alignment"),
        ([pair("general.alignment", BOOL, b"\1")], "alignment"),
    ],
)
def test_pairs_that_cannot_be(pairs: list[bytes], complaint: str, tmp_path: Path) -> None:
    refused(raw(tmp_path, pairs, data=64), complaint)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ([tensor("a"), tensor("a", offset=32)], "twice"),
        ([tensor("")], "empty"),
        ([tensor(num_dims=5, dims=(1,) * 5)], "5 dimensions"),
        ([tensor(num_dims=2**32 - 1)], "dimensions"),
        ([tensor(dims=(8, 0))], "no dimension can be 0"),
        ([tensor(kind=4)], "unknown type 4"),
        ([tensor(kind=9)], "unknown type 9"),
        ([tensor(kind=2**32 - 1)], "unknown type"),
        ([tensor(kind=8, dims=(33,))], "blocks of 32"),
        ([tensor(kind=12, dims=(128, 2))], "blocks of 256"),
        ([tensor(kind=8, dims=())], "blocks of 32"),
        ([tensor(offset=4)], "not divisible by 32"),
        ([tensor(offset=2**64 - 1)], "not divisible by 32"),
        ([tensor(offset=2**64 - 32)], "truncated"),
        ([tensor(offset=256)], "truncated"),
        ([tensor("a", offset=0, dims=(16,)), tensor("b", offset=32)], "b overlaps"),
        ([tensor("a", offset=0), tensor("b", offset=0)], "b overlaps"),
        *[([tensor(dims=(n,))], "truncated") for n in HUGE],
        ([tensor(dims=(2**63, 2**63, 2**63, 2**63))], "truncated"),
    ],
)
def test_tensors_that_cannot_be(tensors: list[bytes], complaint: str, tmp_path: Path) -> None:
    refused(raw(tmp_path, tensors=tensors, data=256), complaint)


def test_a_header_may_not_be_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata that is larger than any model's: read no further, however long the file is."""
    file = raw(tmp_path, [pair("key", STRING, text(b"x" * 1000))])
    assert GgufFile.open(file).metadata["key"] == "x" * 1000
    monkeypatch.setattr(reader, "MAX_HEADER", 500)
    refused(file, "beyond the header")


@pytest.mark.parametrize(
    ("limit", "item"),
    [
        ("MAX_PAIRS", {"pairs": [pair(f"k{i}", U8, b"\0") for i in range(5)]}),
        (
            "MAX_TENSORS",
            {"tensors": [tensor(f"t{i}", offset=32 * i) for i in range(5)], "data": 160},
        ),
        ("MAX_ITEMS", {"pairs": [pair("key", ARRAY, array(STRING, 5, text("") * 5))]}),
        ("MAX_ITEMS", {"pairs": [pair("key", ARRAY, array(U8, 5, b"12345"))]}),
        ("MAX_ITEMS", {"pairs": [pair("key", ARRAY, array(ARRAY, 5, array(U8, 0) * 5))]}),
    ],
)
def test_there_may_not_be_more_than_any_model_has(
    limit: str, item: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = raw(tmp_path, **item)
    GgufFile.open(file)
    monkeypatch.setattr(reader, limit, 4)
    refused(file, "at most 4 are possible")


def test_a_text_that_is_no_utf8_is_an_error_where_it_is_asked_for(tmp_path: Path) -> None:
    pairs = [
        pair("text", STRING, text(b"\xff")),
        pair("texts", ARRAY, array(STRING, 2, text("a") + text(b"\xc3"))),
    ]
    metadata = GgufFile.open(raw(tmp_path, pairs)).metadata
    for key in ("text", "texts"):
        with pytest.raises(CheckpointError, match="not UTF-8"):
            metadata[key]
