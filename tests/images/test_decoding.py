"""What strangers send as images: decoded, or refused with a reason."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import pytest

from inferno.errors import RequestError
from inferno.images.decoding import MOST_PIXELS, data_of, decoded
from inferno.testing import picture_file

Image = pytest.importorskip("PIL.Image")
np = pytest.importorskip("numpy")


def written(image: object, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)  # type: ignore[attr-defined]
    return buffer.getvalue()


def png(width: int, height: int, body: bytes = b"", kind: int = 2) -> bytes:
    """A PNG whose header says this size, whatever follows."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


GRADIENT = np.arange(40 * 30 * 3, dtype=np.uint8).reshape(30, 40, 3)
PICTURE = Image.fromarray(GRADIENT)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats_are_read(format: str) -> None:
    image = decoded(picture_file(0, (40, 30), format))
    assert (image.mode, image.size) == ("RGB", (40, 30))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_pixels_becomes_rgb(mode: str) -> None:
    if mode == "I;16":
        values = np.linspace(0, 65535, 1200).astype(np.uint16).reshape(30, 40)
        image = decoded(written(Image.fromarray(values), "PNG"))
        assert 100 < np.asarray(image).mean() < 155, "scaled, not clipped to white"
    else:
        given = PICTURE.convert("RGBA" if mode == "LA" else mode).convert(mode)
        image = decoded(written(given, "JPEG" if mode == "CMYK" else "PNG"))
    assert (image.mode, image.size) == ("RGB", (40, 30))


def test_a_photograph_is_turned_as_its_metadata_say() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    image = decoded(written(PICTURE, "JPEG", exif=exif, quality=95))
    assert image.size == (30, 40)


def animated(format: str) -> bytes:
    frames = [PICTURE, PICTURE.rotate(90, expand=False), PICTURE.rotate(180)]
    return written(frames[0], format, save_all=True, append_images=frames[1:])


WHOLE = written(PICTURE, "PNG")
JPEG = written(PICTURE, "JPEG")
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "is empty"),
    "text": (lambda: b"hello", "no format that is read"),
    "a script": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no format that is read"),
    "postscript": (lambda: written(PICTURE, "EPS"), "no format that is read"),
    "a format that is not listed": (lambda: written(PICTURE, "TIFF"), "no format that is read"),
    "truncated": (lambda: WHOLE[: len(WHOLE) // 2], "cannot be decoded"),
    "truncated, JPEG": (lambda: JPEG[: len(JPEG) // 2], "cannot be decoded"),
    "a header alone": (lambda: WHOLE[:33], "cannot be decoded|no format"),
    "damaged": (lambda: WHOLE[:60] + b"\xff" * 40 + WHOLE[100:], "cannot be decoded"),
    "a bomb": (lambda: png(60_000, 60_000), "the limit is 50 million"),
    "a long side": (lambda: png(100_000, 10), "the limit is"),
    "no width": (lambda: png(0, 10), "no pixels|no format|cannot be decoded"),
    "animated GIF": (lambda: animated("GIF"), "animated"),
    "animated PNG": (lambda: animated("PNG"), "animated"),
    "animated WebP": (lambda: animated("WEBP"), "animated"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_a_reason(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(RequestError, match=reason) as caught:
        decoded(make(), "messages[0].content[1]")
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.code == "invalid_image" and caught.value.remedy


def test_a_large_photograph_is_no_bomb() -> None:
    assert MOST_PIXELS >= 48_000_000


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:", "no valid data"),
        ("data:image/png;base64", "no valid data"),
        ("data:,x", "no image"),
        ("data:text/plain;base64,AAAA", "no image"),
        ("data:image/png,AAAA", "not in base64"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,\N{SNOWMAN}", "not valid base64"),
        ("data:image/png;base64," + "A" * 2000, "the limit is"),
    ],
)
def test_data_urls_are_checked(url: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        data_of(url, "image", most_bytes=1000)


def test_data_urls_are_decoded() -> None:
    assert data_of("data:image/png;base64,aGVs\nbG8=", "image") == b"hello"
    assert data_of("DATA:image/svg+xml;charset=x;BASE64,aGVsbG8=", "image") == b"hello"
