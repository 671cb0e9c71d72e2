"""Images that were damaged on purpose: a corpus that a seed makes, in cheap variations."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P"),
    "BMP": ("1", "L", "P", "RGB"),
}


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, body: bytes = b"", *, depth: int = 8, kind: int = 2) -> bytes:
    """A PNG with a header of this size, whatever follows."""
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def gif(width: int, height: int, body: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + body


def bmp(width: int, height: int, bits: int, body: bytes) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, 54) + info + body


@cache
def seeds() -> tuple[bytes, ...]:
    """Whole files of every format and kind of pixels, some with metadata, some with frames."""
    import numpy as np
    from PIL import Image

    files = list[bytes]()
    base = Image.fromarray(np.arange(24 * 18 * 3, dtype=np.uint8).reshape(18, 24, 3))

    def add(image: Any, format: str, **options: Any) -> None:
        written = io.BytesIO()
        image.save(written, format, **options)
        files.append(written.getvalue())

    for format in FORMATS:
        for mode in MODES[format]:
            if mode == "I;16":
                add(Image.fromarray(np.arange(432, dtype=np.uint16).reshape(18, 24)), format)
            else:
                add(base.convert("RGBA" if mode == "LA" else mode).convert(mode), format)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a" * 200
    add(base, "JPEG", exif=exif, progressive=True)
    add(base, "PNG", exif=exif, icc_profile=b"x" * 300)
    add(base, "WEBP", exif=exif, lossless=True)
    for format in ("GIF", "PNG", "WEBP"):
        add(base, format, save_all=True, append_images=[base.rotate(180), base.rotate(90)])
    return tuple(files)


def crafted() -> Iterator[bytes]:
    """Yield files that say what they are not: bombs, sizes of nothing, depths that do not exist."""
    zeros = zlib.compress(bytes(10_000_000), 9)
    for size in ((0, 0), (0, 5), (1, 1), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1), (65_535, 65_535)):
        yield png(*size)
        yield png(*size, zeros)
        yield bmp(size[0] % 2**31, -(size[1] % 2**31), 24, bytes(100))
        yield gif(size[0] % 2**16, size[1] % 2**16, b"\x2c" + bytes(30))
    for depth in (0, 1, 2, 4, 8, 16, 255):
        for kind in (0, 2, 3, 4, 6, 9):
            yield png(9, 7, zeros, depth=depth, kind=kind)
    for bits in (0, 1, 4, 8, 16, 24, 32, 64, 65_535):
        yield bmp(1000, 1000, bits, bytes(50))
    yield png(7000, 7000, zeros)
    yield png(50_000, 1)
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000), 9))
    whole = png(4, 4, zlib.compress(bytes(4 * 13)))
    yield whole[:33] + text + whole[33:]
    yield whole[:33] + chunk(b"iCCP", b"a\0\0" + zeros) + whole[33:]
    yield b"RIFF" + struct.pack("<I", 2**32 - 1) + b"WEBPVP8X" + bytes(40)
    yield b"\xff\xd8" + b"\xff\xe1\xff\xff" * 5000
    yield b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + bytes(60)


def damaged(count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield `count` files, each of a whole one by a few changes."""
    drawn = random.Random(seed)
    for _ in range(count):
        data = bytearray(drawn.choice(seeds()))
        for _ in range(drawn.randint(1, 3)):
            drawn.choice(CHANGES)(data, drawn)
        yield bytes(data)


def _cut(data: bytearray, drawn: random.Random) -> None:
    del data[drawn.randrange(len(data) + 1) :]


def _flip(data: bytearray, drawn: random.Random) -> None:
    for _ in range(drawn.choice((1, 1, 4, 30)) if data else 0):
        data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)


def _head(data: bytearray, drawn: random.Random) -> None:
    """Where sizes, depths and lengths are."""
    for _ in range(drawn.randint(1, 6) if data else 0):
        data[drawn.randrange(min(len(data), 48))] = drawn.choice((0, 1, 127, 128, 255))


def _remove(data: bytearray, drawn: random.Random) -> None:
    start = drawn.randrange(len(data) + 1)
    del data[start : start + drawn.randint(1, 40)]


def _repeat(data: bytearray, drawn: random.Random) -> None:
    start = drawn.randrange(len(data) + 1)
    data[start:start] = bytes(data[start : start + drawn.randint(1, 200)]) * drawn.randint(1, 8)


def _noise(data: bytearray, drawn: random.Random) -> None:
    start = drawn.randrange(len(data) + 1)
    data[start : start + 16] = drawn.randbytes(drawn.randint(0, 32))


def _splice(data: bytearray, drawn: random.Random) -> None:
    other = drawn.choice(seeds())
    at = drawn.randrange(len(data) + 1)
    data[at:] = other[drawn.randrange(len(other)) :]


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_cut, _flip, _flip, _head, _remove, _repeat, _noise, _splice),
)
