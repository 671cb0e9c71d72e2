"""Packed weights on disk: the same bytes at every level, and memory that is given back."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from inferno.nn import Dense, Fp8Blocks, TableGroups, Weight
from inferno_cpu import fp8, layouts, memory, packing, reserve, tables
from inferno_cpu.dense import Panels
from inferno_cpu.packed import PackedPanels, pack

MIB = 1 << 20


def matrix(dtype: torch.dtype, rows: int = 40, columns: int = 512) -> torch.Tensor:
    """Any values, the same on every machine."""
    counted = torch.arange(rows * columns) * 2654435761 % 4093
    return (counted.float() / 2046.5 - 1).view(rows, columns).to(dtype)


def blocks(layout: str, rows: int = 40, columns: int = 512) -> torch.Tensor:
    kind = layouts.LAYOUTS[layout]
    nbytes = columns // kind.block * kind.block_bytes
    return (torch.arange(rows * nbytes) * 2654435761 >> 7).to(torch.uint8).view(rows, nbytes)


def panels() -> dict[str, torch.Tensor]:
    """A matrix in panels of every kind."""
    tensors = {
        str(dtype): Panels.of(Dense(matrix(dtype))).panels
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    for layout, kind in layouts.LAYOUTS.items():
        grids: list[torch.Tensor] = []
        if kind.head:
            grids = [matrix(torch.float32, 40, 1)] * (1 if "_sym" in layout else 2)
        elif layout.startswith("int"):
            count = 1 if "_sym_" in layout else 2
            grids = [matrix(torch.float16, 40, 512 // kind.block) for _ in range(count)]
        data = blocks(layout)
        tensors[layout] = pack(layout, (40, 512), data, *grids, dtype=torch.bfloat16)
    codes = matrix(torch.float32).mul(440).to(torch.float8_e4m3fn)
    for block, grid in (((1, 512), (40, 1)), ((16, 128), (3, 4))):
        weight = Fp8Blocks(codes, matrix(torch.float32, *grid), block, torch.bfloat16)
        tensors[weight.layout] = fp8.pack(weight).panels
    for layout, group in layouts.TABLE_GROUPS.items():
        scales, table = matrix(torch.float32, 40, 512 // group), layout.partition("_")[0]
        codes_OB = blocks("int4_g32")
        tensors[layout] = tables.pack(TableGroups(codes_OB, scales, table, torch.bfloat16)).panels
    return tensors


EXPECTED = 2, "1aefb0edf8fa66b1"


def test_another_arrangement_is_another_version(isa: str) -> None:
    """Packed weights are kept on disk by this version. The bytes are the same at every level."""
    digest = hashlib.sha256()
    for name, tensor in panels().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    assert (layouts.LAYOUT_VERSION, digest.hexdigest()[:16]) == EXPECTED, (
        "the panels differ: raise LAYOUT_VERSION, or old files are read wrongly"
    )


def saved(weight: Weight) -> tuple[Mapping[str, object], memoryview]:
    pair = packing.save(weight)
    assert pair is not None
    [data] = pair[1]
    return pair[0], data


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_panels_are_saved_and_loaded(dtype: torch.dtype) -> None:
    weight = Panels.of(Dense(matrix(dtype)))
    about, data = saved(weight)
    again, x = packing.load(about, data), torch.randn(3, 512).to(dtype)
    assert torch.equal(again.matmul(x), weight.matmul(x))
    assert again.shape == weight.shape
    with pytest.raises(ValueError, match="bytes instead of"):
        packing.load(about, data[:-1])


def test_quantized_panels_are_saved_and_loaded() -> None:
    stored = SimpleNamespace(layout="q8_0", shape=(40, 512), data=blocks("q8_0"))
    stored.data[:, 1::34] = 0x30  # scales that are small numbers
    tensor = pack("q8_0", (40, 512), stored.data, dtype=torch.bfloat16)
    weight = PackedPanels("q8_0", (40, 512), torch.bfloat16, tensor)
    about, data = saved(weight)
    again, x = packing.load(about, data), torch.randn(3, 512).bfloat16()
    assert torch.equal(again.matmul(x), weight.matmul(x))


def test_other_weights_are_not_saved() -> None:
    assert packing.save(Dense(matrix(torch.float32))) is None


class Parts:
    """Two parts of a file, of which `broken` cannot be read beyond some bytes."""

    def __init__(self, nbytes: Mapping[str, int], broken: int | None = None) -> None:
        self.places = {name: SimpleNamespace(offset=0, nbytes=n) for name, n in nbytes.items()}
        self.data = {name: torch.arange(n).to(torch.uint8).numpy() for name, n in nbytes.items()}
        self.broken = broken

    def mapped(self, name: str) -> memoryview:
        return self.data[name].data

    def read_into(self, name: str, to: memoryview, start: int = 0) -> None:
        if self.broken is not None and start + to.nbytes > self.broken:
            raise ValueError("it is truncated")
        to[:] = self.data[name].data[start : start + to.nbytes]


SIZES = {"a": 5000, "b": 9 * MIB + 1, "c": 1, "d": 4 * MIB}


@pytest.fixture(params=["huge", "small", "unpopulated"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whether memory has huge pages, and whether the system can fault pages in."""
    if request.param != "huge":
        monkeypatch.setattr(reserve, "huge_pages", lambda: request.param != "small")
    if request.param == "unpopulated":
        monkeypatch.setattr(reserve, "_madvise", lambda *arguments: -1)
    yield request.param


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux only")
def test_parts_are_read_in_any_order(kind: str) -> None:
    parts = Parts(SIZES)
    with packing.read(parts) as take:
        buffers = {name: take(name) for name in ("d", "a", "c", "b")}
    assert {name: bytes(data) for name, data in buffers.items()} == {
        name: parts.data[name].tobytes() for name in SIZES
    }
    tensors = [torch.frombuffer(data, dtype=torch.uint8) for data in buffers.values()]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors), "what the kernels need"


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux only")
def test_a_part_that_cannot_be_read_is_an_error_and_no_reader_waits() -> None:
    with packing.read(Parts(SIZES, broken=6 * MIB)) as take:
        with pytest.raises(ValueError, match="truncated"):
            take("b")
        with pytest.raises(ValueError, match="truncated"):
            take("d")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux only")
def test_a_failed_load_ends_the_copying() -> None:
    with pytest.raises(KeyError), packing.read(Parts(SIZES)):
        raise KeyError


def test_a_numa_machine_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "NODES", tmp_path)
    (tmp_path / "node0").mkdir()
    assert packing.version() == f"panels {layouts.LAYOUT_VERSION}"
    (tmp_path / "node1").mkdir()
    assert packing.version() is None


# --- memory that weights are packed from ----------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (8 * MIB // 256))
    return path


def mapped(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        return mmap.mmap(
            stream.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )


def resident(data: torch.Tensor) -> int:
    """Pages of the tensor that are in this process's memory."""
    first = data.data_ptr() // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(first * 8)
        entries = pagemap.read(data.nbytes // mmap.PAGESIZE * 8)
    return sum(entry >> 7 for entry in entries[7::8])


needs_pagemap = pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux only")


@needs_pagemap
def test_pages_of_a_mapped_file_are_given_back_and_read_again(file: Path) -> None:
    data = torch.frombuffer(mapped(file), dtype=torch.uint8)
    before = data.clone()
    assert resident(data) == data.nbytes // mmap.PAGESIZE
    assert memory.forget(data.data_ptr(), data.nbytes)
    assert resident(data) == 0
    assert torch.equal(data, before)


@needs_pagemap
@pytest.mark.parametrize("position", [0, 3 * MIB + 5, 8 * MIB - 1])
def test_pages_that_were_written_to_stay(file: Path, position: int) -> None:
    data = torch.frombuffer(mapped(file), dtype=torch.uint8)
    data[position] += 1
    before = data.clone()
    assert not memory.forget(data.data_ptr(), data.nbytes)
    assert torch.equal(data, before)


@needs_pagemap
def test_memory_that_is_no_file_stays() -> None:
    data = torch.arange(MIB)
    before = data.clone()
    assert not memory.forget(data.data_ptr(), data.nbytes)
    assert torch.equal(data, before)


@needs_pagemap
def test_a_large_matrix_is_packed_in_pieces_and_its_pages_are_given_back(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_PIECE", MIB)
    weight_OI = torch.frombuffer(mapped(file), dtype=torch.bfloat16).view(4096, 1024)
    whole = Panels.of(Dense(weight_OI.clone()))
    assert torch.equal(Panels.of(Dense(weight_OI)).panels, whole.panels)
    assert resident(weight_OI) < 300, "of 2 048: the last piece, and what the system read ahead"
