"""Audio files of strangers: read, mixed down and resampled, or refused within limits."""

from __future__ import annotations

import asyncio
import io
import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hearing_model import write_hearing_model

from inferno.errors import RequestError
from inferno.images.mediums import AUDIO
from inferno.images.pixels import PixelFiles
from inferno.images.sound import Samples, decoded, given_samples, wav_of
from inferno.plan import Options, resolve
from inferno.process.image_reader import ImageReader
from inferno.testing import sound

soundfile: Any = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

RATE = 16_000
MOST_BYTES = 400_000_000
"""That the process may ever have had, of audio of two seconds."""
TONE: Samples = (np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE) / 2).astype(np.float32)


def file_of(
    samples: Any, rate: int = RATE, format: str = "WAV", subtype: str | None = None
) -> bytes:
    written = io.BytesIO()
    soundfile.write(written, samples, rate, format=format, subtype=subtype)
    return written.getvalue()


def same(found: Any, wanted: Any, off: float) -> bool:
    """Whether samples are the same but for the ends, which codecs and filters change."""
    middle = slice(len(wanted) // 4, -len(wanted) // 4)
    return bool(np.abs(found[middle] - wanted[middle]).max() < off)


@pytest.mark.parametrize(
    ("format", "subtype", "off"),
    [
        ("WAV", "PCM_16", 1e-4),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "FLOAT", 1e-9),
        ("WAV", "PCM_U8", 1e-2),
        ("WAVEX", "PCM_16", 1e-4),
        ("FLAC", None, 1e-4),
        ("OGG", None, 0.05),
        ("MP3", None, 0.05),
    ],
)
def test_formats_are_read(format: str, subtype: str | None, off: float) -> None:
    samples = decoded(file_of(TONE, format=format, subtype=subtype), RATE, 30)
    assert samples.dtype == np.float32 and samples.ndim == 1
    if format != "MP3":  # its encoder shifts what it writes
        assert len(samples) == RATE and same(samples, TONE, off)
    else:
        assert 0.95 * RATE < len(samples) < 1.2 * RATE
        assert abs(np.abs(samples).max() - 0.5) < off


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(rate: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32) / 2
    samples = decoded(file_of(tone, rate), RATE, 30)
    assert len(samples) == RATE and same(samples, TONE, 1e-3)


def test_channels_are_mixed_down() -> None:
    samples = decoded(file_of(np.stack([TONE, 0 * TONE], 1), subtype="FLOAT"), RATE, 30)
    assert same(samples, TONE / 2, 1e-6)
    given = given_samples((np.stack([TONE, TONE], 1), RATE), RATE, 30, "audio")
    assert same(given, TONE, 1e-6)


def test_samples_become_a_file_and_come_back() -> None:
    assert (decoded(wav_of(TONE, RATE), RATE, 30) == TONE).all()


def test_a_number_of_seconds_is_the_limit_whatever_the_header_says() -> None:
    two = file_of(np.concatenate([TONE, TONE]))
    assert len(decoded(two, RATE, 2)) == 2 * RATE
    for format in ("WAV", "FLAC", "OGG", "MP3"):
        with pytest.raises(RequestError, match=r"seconds long, the limit is 1\.5") as caught:
            decoded(file_of(np.concatenate([TONE, TONE]), format=format), RATE, 1.5)
        assert caught.value.code == "invalid_audio"
    # Both sizes in the header say that there is nearly nothing.
    short = bytearray(two)
    struct.pack_into("<I", short, short.index(b"data") + 4, 8)
    assert len(decoded(bytes(short), RATE, 1)) <= RATE


REFUSED = {
    "empty": (b"", "is empty"),
    "text": (b"hello", "cannot be decoded"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "cannot be decoded"),
    "no samples": (file_of(TONE[:0]), "has no samples"),
    "another format": (file_of(TONE, format="AIFF"), "of the format AIFF"),
    "many channels": (file_of(np.zeros((4, 9), np.float32)), "9 channels"),
    "few samples a second": (file_of(TONE, 500), "500 samples a second"),
    "not a number": (
        file_of(np.array([0.0, np.nan, 0.5], np.float32), subtype="FLOAT"),
        "not finite",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(RequestError, match=reason) as caught:
        decoded(data, RATE, 30, "messages[0]")
    assert caught.value.code == "invalid_audio" and caught.value.param == "messages[0]"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (np.zeros(4, np.int16), "an array of int16"),
        (np.zeros((2, 2, 2)), "the shape"),
        ((TONE, "fast"), "the rate 'fast'"),
        ((TONE, 1), "1 samples a second"),
        (np.zeros(31 * RATE), "31 seconds long"),
        (np.array([np.inf, 0.0]), "not finite"),
        ({"a": 1}, "an array of object"),
    ],
)
def test_samples_of_the_caller_s_own_are_checked(given: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        given_samples(given, RATE, 30, "audio")


def damaged(count: int, seed: int) -> Iterable[bytes]:
    """Files with bytes changed, cut off, put in or repeated, most of them near the beginning."""
    drawn = random.Random(seed)
    samples = sound(0, 0.1)
    whole = [file_of(samples, format=name) for name in ("WAV", "WAVEX", "FLAC", "OGG", "MP3")]
    whole += [file_of(samples, subtype=name) for name in ("FLOAT", "ULAW", "IMA_ADPCM", "GSM610")]
    for _ in range(count):
        data = bytearray(drawn.choice(whole))
        for _ in range(drawn.randint(1, 8)):
            at = int(len(data) * drawn.random() ** 3)
            kind = drawn.randrange(5)
            if kind == 0:
                data[at] = drawn.randrange(256)
            elif kind == 1:
                data[at : at + 4] = struct.pack("<I", drawn.choice([0, 1, 2**31, 2**32 - 1]))
            elif kind == 2:
                del data[at : at + drawn.randint(1, 64)]
            elif kind == 3:
                data[at:at] = drawn.randbytes(drawn.randint(1, 64))
            else:
                data[at:at] = data[at : at + drawn.randint(1, 256)]
            if not data:
                break
        yield bytes(data)


def outcomes(files: Iterable[bytes]) -> dict[str, int]:
    """Decode all in this process; anything but samples or the own error fails."""
    counts = {"read": 0, "refused": 0}
    for data in files:
        try:
            samples = decoded(data, RATE, 2)
        except RequestError as error:
            assert error.code == "invalid_audio" and error.remedy and len(error.cause) < 400
            counts["refused"] += 1
        else:
            assert np.isfinite(samples).all() and len(samples) <= 2 * RATE + 1
            counts["read"] += 1
    return counts


def test_some_damaged_files() -> None:
    assert min(outcomes(damaged(300, 1)).values()) > 20, "the corpus must have both"


@pytest.mark.slow
def test_thousands_of_damaged_files() -> None:
    assert min(outcomes(damaged(10_000, 2)).values()) > 1000


@pytest.mark.slow
def test_the_reader_survives_them_in_bounded_memory(tmp_path: Path) -> None:
    pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")
    write_hearing_model(tmp_path)
    plan = resolve(str(tmp_path), Options(device="cpu", dtype="float32", memory="2GiB"))
    long = file_of(np.zeros(8_000 * 3, np.float32), 8_000)

    async def run() -> tuple[int, int, str]:
        reader, counts = ImageReader(plan, PixelFiles(2**20)), [0, 0]
        process = await reader._started()
        for data in [long, *damaged(1500, seed=3)]:
            try:
                picture = await reader.read(data, "audio", AUDIO)
                assert picture.medium == "audio" and picture.count > 0
                counts[0] += 1
            except RequestError as error:
                assert error.code == "invalid_audio"
                counts[1] += 1
        assert reader._process is process and reader.kills == 0, "none of them ended it"
        status = Path(f"/proc/{process.pid}/status").read_text()
        await reader.close()
        return counts[0], counts[1], status

    read, refused, status = asyncio.run(run())
    assert read > 100 and refused > 100
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    assert int(peak) * 1024 < MOST_BYTES
