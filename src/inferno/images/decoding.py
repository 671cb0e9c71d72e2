"""Decodes images of strangers: only some formats, and within limits that are checked before any
memory is taken. Pillow is imported where an image comes."""

from __future__ import annotations

import base64
import binascii
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from inferno.errors import RequestError, UnsupportedError
from inferno.images.mediums import IMAGE, Medium

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 50_000_000
"""Of an image as it is sent: a photograph has 12 to 48 million."""
MOST_BYTES = 20 * 2**20
"""Of an image as it is sent, unless the server is told otherwise."""
_LONGEST_SIDE = 65_500
_DATA = re.compile(r"(?ai)data:(?P<type>[\w.+-]*/?[\w.+-]*)(?P<more>(;[^,;]*)*),")


def refused(
    cause: str, param: str, remedy: str | None = None, medium: Medium = IMAGE
) -> RequestError:
    """Return the error of an image that cannot be used, or of another medium."""
    remedy = f"Send {medium.files}." if remedy is None else remedy
    return RequestError(cause, remedy, param=param, code=medium.code)


def data_of(url: str, param: str, most_bytes: int = MOST_BYTES, medium: Medium = IMAGE) -> bytes:
    """Return what is in a `data:` URL. Raises RequestError."""
    head, remedy = _DATA.match(url[:200]), f"Write {medium.example}."
    if head is None:
        raise refused(f"{param} is no valid data: URL", param, remedy, medium)
    kind, more = head["type"].lower(), head["more"].lower()
    if not kind.startswith(f"{medium.name}/"):
        shown = kind[:40] or "no media type"
        raise refused(f"{param} has {shown}, which is no {medium.name}", param, medium=medium)
    if not more.endswith(";base64"):
        raise refused(f"{param} is not in base64", param, remedy, medium)
    return decoded_base64(url[head.end() :], param, most_bytes, medium)


def decoded_base64(
    text: str, param: str, most_bytes: int = MOST_BYTES, medium: Medium = IMAGE
) -> bytes:
    """Return the bytes of a file in base64. Raises RequestError."""
    check_size(len(text) * 3 // 4 - 2, param, most_bytes, medium)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        cause = f"{param} is not valid base64"
        raise refused(cause, param, "Encode the file's bytes in base64.", medium) from error


def check_size(nbytes: int, param: str, most_bytes: int, medium: Medium = IMAGE) -> None:
    """Raise RequestError for too many bytes."""
    if nbytes > most_bytes:
        raise refused(
            f"{param} has {nbytes >> 20} MiB, the limit is {most_bytes / 2**20:g} MiB",
            param,
            "Send a smaller file.",
            medium,
        )


def decoded(data: bytes, param: str = "image") -> Image:
    """Return an image in RGB, upright. Raises RequestError for what is damaged, too large or no
    image, and UnsupportedError without Pillow."""
    from_pillow = pillow()
    if not data:
        raise refused(f"{param} is empty", param)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, and sizes that we check
            from_pillow.MAX_IMAGE_PIXELS = None
            with from_pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                check_pixels(image.size, param)
                # Pictures with a preview of themselves are MPO: the first one counts.
                if image.format != "MPO" and getattr(image, "is_animated", False):
                    raise refused(f"{param} is animated", param)
                image.load()
                return upright(image)
    except (RequestError, UnsupportedError):
        raise
    except from_pillow.UnidentifiedImageError as error:
        raise refused(f"{param} is in no format that is read", param) from error
    except Exception as error:  # decoders raise anything: SyntaxError, struct.error, KeyError
        what = str(error)[:200] or type(error).__name__
        raise refused(f"{param} cannot be decoded: {what}", param) from error


def upright(image: Image) -> Image:
    """Return an image in RGB, turned as its metadata say."""
    from PIL import Image as pillow_image
    from PIL import ImageOps

    turned: Any = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):  # 16 bits: converted as they are, nearly all would be white
        import numpy as np

        values = np.asarray(turned, np.int64)
        turned = pillow_image.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))
    rgb: Image = turned.convert("RGB")
    return rgb


def check_pixels(size: tuple[int, int], param: str = "image") -> None:
    """Raise RequestError for an image that would take too much memory to decode."""
    width, height = size
    if width < 1 or height < 1:
        raise refused(f"{param} has no pixels: it is {width} x {height}", param)
    if width * height > MOST_PIXELS or max(width, height) > _LONGEST_SIDE:
        raise refused(
            f"{param} is {width} x {height} pixels, the limit is {MOST_PIXELS // 10**6} million",
            param,
            "Scale it down: models see far fewer.",
        )


def pillow() -> Any:
    """Import Pillow. Raises UnsupportedError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError("images need Pillow", "pip install 'inferno[images]'") from error
    return Image
