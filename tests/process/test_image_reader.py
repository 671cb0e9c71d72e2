"""The process that reads images: what ends it, and what it need not read again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.seeing_model import write_seeing_model

from inferno.errors import ImagesBusyError, RequestError
from inferno.images.pixels import PixelFiles
from inferno.plan import Options, Plan, resolve
from inferno.process.image_reader import ImageReader
from inferno.testing import picture_file

pytest.importorskip("PIL")
pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")

SMALL = picture_file(1, (60, 60))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("seeing")
    write_seeing_model(folder)
    return resolve(str(folder), Options(device="cpu", dtype="float32", memory="2GiB"))


def reading(
    plan: Plan,
    body: Callable[[ImageReader], Awaitable[None]],
    seconds: float = 10.0,
    max_bytes: int = 2**20,
) -> None:
    async def run() -> None:
        reader = ImageReader(plan, PixelFiles(max_bytes), seconds=seconds)
        try:
            await body(reader)
        finally:
            await reader.close()

    asyncio.run(run())


def test_a_file_that_was_read_is_known(plan: Plan) -> None:
    async def body(reader: ImageReader) -> None:
        first = await reader.read(SMALL, "image")
        again = await reader.read(SMALL, "another")
        assert (again.digest, again.path) == (first.digest, first.path)
        assert reader.checks == 1, "the process was asked once"
        same = await reader.read(picture_file(1, (60, 60), "BMP"), "image")
        assert same.digest == first.digest, "what the model sees, not how it is stored"
        other = await reader.read(picture_file(2, (60, 60)), "image")
        assert other.digest != first.digest

    reading(plan, body)


@pytest.mark.slow
def test_a_file_whose_pixels_made_room_is_read_again(plan: Plan) -> None:
    async def body(reader: ImageReader) -> None:
        path = Path((await reader.read(SMALL, "image")).path)
        assert not path.exists()
        assert Path((await reader.read(SMALL, "image")).path) == path
        assert reader.checks == 2

    reading(plan, body, max_bytes=0)


@pytest.mark.slow
def test_an_image_that_takes_too_long_ends_the_process_and_others_go_on(plan: Plan) -> None:
    async def body(reader: ImageReader) -> None:
        large = picture_file(3, (6000, 6000))
        with pytest.raises(RequestError, match=r"takes more than 0.5 s to decode") as caught:
            await reader.read(large, "image")
        assert caught.value.code == "invalid_image" and reader.kills == 1
        assert (await reader.read(SMALL, "image")).count == 4

    reading(plan, body, seconds=0.5)


@pytest.mark.slow
def test_a_reader_that_gets_no_time_says_nothing_of_the_image(plan: Plan) -> None:
    async def body(reader: ImageReader) -> None:
        (await reader._started()).send_signal(signal.SIGSTOP)
        with pytest.raises(ImagesBusyError, match="reads images gets no time") as caught:
            await reader.read(SMALL, "image")
        assert caught.value.status == 503 and caught.value.code == "image_reader_busy"

    reading(plan, body, seconds=0.2)
