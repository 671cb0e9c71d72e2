"""Damaged and hostile images: a picture or a 400, and nothing else, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.images.hostile import crafted, damaged, seeds
from tests.seeing_model import write_seeing_model

from inferno.errors import RequestError
from inferno.images.decoding import MOST_PIXELS, decoded
from inferno.images.pixels import PixelFiles
from inferno.plan import Options, resolve
from inferno.process.image_reader import ImageReader

pytest.importorskip("PIL")

MOST_BYTES = 1_500_000_000
"""That a process may ever have had: of the largest image that is read, its pixels three times in
RGB, and the processor."""


def outcomes(files: Iterable[bytes]) -> dict[str, int]:
    """Decode all in this process; anything but a picture or its own error fails."""
    counts = {"read": 0, "refused": 0}
    for data in files:
        try:
            image = decoded(data)
        except RequestError as error:
            assert error.code == "invalid_image" and error.remedy and len(error.cause) < 400
            counts["refused"] += 1
        else:
            assert image.mode == "RGB" and 0 < image.width * image.height <= MOST_PIXELS
            counts["read"] += 1
    return counts


def test_whole_files_are_read() -> None:
    assert outcomes(seeds()) == {"read": len(seeds()) - 3, "refused": 3}, "but for animations"


def test_files_that_say_what_they_are_not() -> None:
    counts = outcomes(crafted())
    assert counts["refused"] > counts["read"] > 0


def test_some_damaged_files() -> None:
    counts = outcomes(damaged(300, seed=1))
    assert min(counts.values()) > 20, "the corpus must have both"


@pytest.mark.slow
def test_thousands_of_damaged_files() -> None:
    counts = outcomes(damaged(10_000, seed=2))
    assert min(counts.values()) > 1000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_seeing_model(folder)
    return folder


@pytest.mark.slow
def test_the_reader_survives_them_in_bounded_memory(checkpoint: Path) -> None:
    pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")
    plan = resolve(str(checkpoint), Options(device="cpu", dtype="float32", memory="2GiB"))
    files = PixelFiles(2**20)

    async def run() -> tuple[int, int, str]:
        reader, counts = ImageReader(plan, files), [0, 0]
        process = await reader._started()
        for data in [*crafted(), *damaged(1500, seed=3)]:
            try:
                picture = await reader.read(data, "image")
                assert Path(picture.path).exists() and picture.count > 0
                counts[0] += 1
            except RequestError as error:
                assert error.code == "invalid_image"
                counts[1] += 1
        assert reader._process is process and reader.kills == 0, "none of them ended it"
        status = Path(f"/proc/{process.pid}/status").read_text()
        await reader.close()
        return counts[0], counts[1], status

    read, refused, status = asyncio.run(run())
    assert read > 100 and refused > 100
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    assert int(peak) * 1024 < MOST_BYTES
    assert not list(files.folder.glob("*")) if files.folder.exists() else True
