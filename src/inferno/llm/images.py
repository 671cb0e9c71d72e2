"""Images in prompts and conversations: found, read, and put at their places among the tokens."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.contracts import ImageLayoutConfig, ImageTextConfig
from inferno.errors import RequestError
from inferno.images.decoding import check_pixels, check_size, data_of, decoded, pillow, upright
from inferno.images.pixels import Picture, PixelFiles
from inferno.images.preparing import Preparer, reads_text
from inferno.llm.prompts import IMAGES, Prompt, images_beside, unwrapped
from inferno.plan import Opened
from inferno.request.requests import ImagePart
from inferno.text.messages import is_image

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_PARTS = ("image", "image_url", "input_image", "image_pil")
"""Types of a message's parts that are images."""
MOST_IMAGES = 64
"""Of a prompt."""
_LOCAL_BYTES = 2**30


class SeeingTokens(tuple[int, ...]):
    """The token ids of a prompt with images."""

    pictures: tuple[Picture, ...]
    """In order. Their files are there while this is referred to."""
    images: tuple[ImagePart, ...]

    @classmethod
    def of(cls, ids: Sequence[int], config: Any, pictures: Sequence[Picture], param: str) -> Any:
        """Expand each image token (`ImageModelConfig.image_token_id`) of a prompt to the positions
        of an image, in order. Raises RequestError unless there are as many tokens as images."""
        token = config.image_token_id
        if (places := list(ids).count(token)) != len(pictures):
            raise RequestError(
                f"the prompt has {places} places for {len(pictures)} images",
                "A text may not contain the token that stands for an image, and a chat template "
                "must write it once for each image.",
                param=param,
            )
        found, parts, left = list[int](), list[ImagePart](), iter(pictures)
        for id in ids:
            if id != token:
                found.append(id)
                continue
            picture, layout = next(left), None
            if isinstance(config, ImageLayoutConfig):
                layout = config.image_layout(picture.grid)
            parts += picture.at(len(found), layout)
            found += (token if each is None else each for each in layout or [None] * picture.count)
        made = cls(found)
        made.pictures, made.images = tuple(pictures), tuple(parts)
        return made


def seeing(
    ids: Sequence[int],
    pictures: Sequence[Picture],
    images: PromptImages | None,
    param: str = "messages",
) -> tuple[int, ...]:
    """Return the token ids of a prompt with these images, in order. Raises RequestError."""
    if not pictures or images is None:
        return tuple(ids)
    found: tuple[int, ...] = SeeingTokens.of(ids, images.opened.config, pictures, param)
    return found


def written(text: str, images: PromptImages | None) -> str:
    """Return what is encoded of a prompt that may have images (`contracts.ImageTextConfig`)."""
    config = None if images is None else images.opened.config
    return text.replace(*config.image_text) if isinstance(config, ImageTextConfig) else text


def pictures_beside(
    prompt: Prompt, images: PromptImages | None
) -> tuple[str | Sequence[int], list[Picture]]:
    """Return what is encoded of a prompt, or its ids, and read the images of a vLLM prompt object.
    Raises RequestError."""
    sources = images_beside(prompt)
    if sources and images is None:
        raise no_images("this model", IMAGES)
    plain = unwrapped(prompt) if isinstance(prompt, Mapping) else prompt
    if images is None or not sources:
        return plain, []
    plain = written(plain, images) if isinstance(plain, str) else plain
    return plain, [images.read(each, IMAGES) for each in sources]


def check_whole(token_ids: Sequence[int]) -> None:
    """Raise RequestError for a prompt that may not be truncated: a part of an image is none."""
    if images_of(token_ids):
        raise RequestError(
            "a prompt with images cannot be truncated",
            "Leave truncate_prompt_tokens out, or the images.",
            param="truncate_prompt_tokens",
        )


def images_of(token_ids: Sequence[int]) -> tuple[ImagePart, ...]:
    """Return where a prompt's images are; none in most."""
    return token_ids.images if isinstance(token_ids, SeeingTokens) else ()


def separated(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], list[tuple[Any, str]]]:
    """Return the messages with nothing but the type in their images' parts, and what the images
    are, each with its param. Messages without any are returned as they are. Raises RequestError."""
    found, plain = list[tuple[Any, str]](), list[Mapping[str, Any]]()
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) or not isinstance(content, Sequence):
            plain.append(message)
            continue
        parts = list[Any]()
        for j, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in IMAGE_PARTS:
                param = str(part.get("param", f"messages[{i}].content[{j}]"))[:200]
                found.append((source_of(part, param), param))
                part = {"type": "image"}
            parts.append(part)
        plain.append({**message, "content": parts})
    if len(found) > MOST_IMAGES:
        raise RequestError(
            f"there are {len(found)} images, the limit is {MOST_IMAGES}",
            "Send fewer.",
            param="messages",
        )
    return (plain if found else messages), found


def source_of(part: Mapping[str, Any], param: str) -> Any:
    """Return what a part says that its image is: an address, or what `LLM` takes besides. Raises
    RequestError."""
    for name in ("image_url", "image", "image_pil"):
        given = part.get(name)
        if isinstance(given, Mapping):
            given = given.get("url")
        if given is not None:
            return given
    raise RequestError(
        f"{param} has no image",
        'Give "image_url": {"url": "data:image/png;base64,..."}.',
        param=param,
    )


@define(eq=False)
class PromptImages:
    """How prompts for a model have images."""

    opened: Opened
    files: PixelFiles | None = None
    """Of images that this process reads itself: `LLM`'s, whose caller is trusted."""
    _preparer: Preparer | None = field(default=None, init=False)

    @classmethod
    def of(cls, opened: Opened) -> PromptImages | None:
        """None for a model that reads text only."""
        if opened.plan.images is None:
            return None
        return cls(opened)

    def read(self, source: Any, param: str) -> Picture:
        """Read an image in this process: a `Picture` as it is, an image of Pillow, bytes, a path,
        or a `data:` URL. Raises RequestError, UnsupportedError."""
        if isinstance(source, Picture):
            return source
        image = opened_image(source, param)
        if self._preparer is None or self.files is None:
            self._preparer = Preparer.of(self.opened)
            use = self.opened.plan.images
            assert use is not None, "`of` looks"
            self.files = PixelFiles(use.cache_bytes)
        for _ in range(3):
            if (known := self.files.find(self._preparer.digest(image))) is not None:
                return known
            prepared = self._preparer.prepare(image, self.files.folder, param)
            if (picture := self.files.adopt(prepared)) is not None:
                return picture
        raise AssertionError("nobody removes a file that was just written three times")


def read_all(
    messages: Sequence[Mapping[str, Any]], images: PromptImages | None, model: str
) -> tuple[Sequence[Mapping[str, Any]], list[Picture]]:
    """Return the messages without what their images are, and these, read in this process. Raises
    RequestError."""
    messages, sources = separated(messages)
    if sources and images is None:
        raise no_images(model, sources[0][1])
    return messages, [images.read(source, param) for source, param in sources] if images else []


async def read_elsewhere(
    messages: Sequence[Mapping[str, Any]],
    images: PromptImages | None,
    see: Callable[[bytes, str], Awaitable[Picture]],
) -> Sequence[Mapping[str, Any]]:
    """Return the messages with images that another process has read. Raises RequestError."""
    plain, sources = separated(messages)
    if sources and images is None:
        raise no_images("this model", sources[0][1])
    pictures = [
        source
        if isinstance(source, Picture)
        else await see(await asyncio.to_thread(file_of, source, param), param)
        for source, param in sources
    ]
    return with_pictures(plain, pictures)


def with_pictures(
    messages: Sequence[Mapping[str, Any]], pictures: Sequence[Picture]
) -> Sequence[Mapping[str, Any]]:
    """Return `separated` messages with these images."""
    if not pictures:
        return messages
    left = iter(pictures)

    def filled(part: Any) -> Any:
        return {**part, "image": next(left)} if is_image(part) else part

    return [
        {**message, "content": [filled(part) for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]


def no_images(model: str, param: str) -> RequestError:
    """Return the error of an image for a model that reads text."""
    remedy = "Send text only, or use a model that sees images."
    cause, code = f"{param} is an image, and {reads_text(model)}", "unsupported_parameter"
    return RequestError(cause, remedy, param=param, code=code)


def opened_image(source: Any, param: str) -> Image:
    """Return an image of the caller's own in RGB. Raises RequestError."""
    if isinstance(source, str) and source[:5].lower() == "data:":
        return decoded(data_of(source, param, _LOCAL_BYTES), param)
    if isinstance(source, str) and source.lower().startswith(("http://", "https://")):
        raise RequestError(
            f"{param} is an address in the network, which is not fetched here",
            "Fetch it, and give its bytes; a server fetches with --allow-image-urls.",
            param=param,
        )
    if isinstance(source, str | Path):
        path = Path(str(source).removeprefix("file://"))
        try:
            check_size(path.stat().st_size, param, _LOCAL_BYTES)
            return decoded(path.read_bytes(), param)
        except OSError as error:
            cause = f"{param}: {path} cannot be read: {error.strerror}"
            raise RequestError(cause, "Check the path.", param=param) from error
    if isinstance(source, bytes | bytearray | memoryview):
        return decoded(bytes(source), param)
    if isinstance(source, pillow().Image):
        check_pixels(source.size, param)
        return upright(source)
    raise RequestError(
        f"{param} is of type {type(source).__name__}",
        "Give an image of Pillow, bytes, a path or a data: URL.",
        param=param,
    )


def file_of(source: Any, param: str) -> bytes:
    """Return an image of the caller's own as the bytes of a file, for another process."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    written = io.BytesIO()
    opened_image(source, param).save(written, "PNG", compress_level=1)
    return written.getvalue()
