"""Images and audio in prompts and conversations: found, read, and put at their places among the
tokens."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from inferno.contracts import (
    AudioLayoutConfig,
    AudioTextConfig,
    ImageLayoutConfig,
    ImageTextConfig,
)
from inferno.errors import RequestError
from inferno.images.decoding import check_pixels, check_size, data_of, decoded, pillow, upright
from inferno.images.mediums import AUDIO, IMAGE, MEDIUMS, Medium
from inferno.images.pixels import Picture, PixelFiles
from inferno.images.preparing import Prepares, lacks, preparers
from inferno.llm.audio import audio_file, audio_of, opened_audio
from inferno.llm.prompts import MEDIA, Prompt, media_beside, unwrapped
from inferno.plan import Opened
from inferno.request.requests import ImagePart
from inferno.text.messages import is_medium

if TYPE_CHECKING:
    from PIL.Image import Image

MEDIUM_OF = {kind: medium for medium in (IMAGE, AUDIO) for kind in medium.parts}
"""Types of a message's parts that are no text."""
MOST_IMAGES = 64
"""Of a prompt."""
_LOCAL_BYTES = 2**30


class SeeingTokens(tuple[int, ...]):
    """The token ids of a prompt with images or audio."""

    pictures: tuple[Picture, ...]
    """In order. Their files are there while this is referred to."""
    images: tuple[ImagePart, ...]

    @classmethod
    def of(cls, ids: Sequence[int], config: Any, pictures: Sequence[Picture], param: str) -> Any:
        """Expand each image token (`ImageModelConfig.image_token_id`) of a prompt to the positions
        of an image, in order, and those of audio. Raises RequestError unless there are as many
        tokens as images."""
        known = ((getattr(config, f"{name}_token_id", None), name) for name in MEDIUMS)
        tokens = {token: name for token, name in known if token is not None}
        left = {name: [each for each in pictures if each.medium == name] for name in MEDIUMS}
        for token, name in tokens.items():
            _check_places(list(ids).count(token), len(left[name]), MEDIUMS[name], param)
        token_ids, parts = list[int](), list[ImagePart]()
        for id in ids:
            if id not in tokens:
                token_ids.append(id)
                continue
            picture = left[tokens[id]].pop(0)
            layout = _layout(config, picture)
            parts += picture.at(len(token_ids), layout)
            token_ids += (id if each is None else each for each in layout or [None] * picture.count)
        made = cls(token_ids)
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
    token_ids: tuple[int, ...] = SeeingTokens.of(ids, images.opened.config, pictures, param)
    return token_ids


def written(text: str, images: PromptImages | None) -> str:
    """Return what is encoded of a prompt with images or audio (`contracts.ImageTextConfig`,
    `AudioTextConfig`)."""
    config = None if images is None else images.opened.config
    text = text.replace(*config.image_text) if isinstance(config, ImageTextConfig) else text
    return text.replace(*config.audio_text) if isinstance(config, AudioTextConfig) else text


def _layout(config: Any, picture: Picture) -> Sequence[int | None] | None:
    if picture.medium == IMAGE.name:
        by_image = isinstance(config, ImageLayoutConfig)
        return config.image_layout(picture.grid) if by_image else None
    return config.audio_layout(picture.grid) if isinstance(config, AudioLayoutConfig) else None


def _check_places(places: int, count: int, medium: Medium, param: str) -> None:
    if places == count:
        return
    plural = "images" if medium is IMAGE else "pieces of audio"
    raise RequestError(
        f"the prompt has {places} places for {count} {plural}",
        f"A text may not contain the token that stands for {medium.noun}, and a chat template "
        f"must write it once for each.",
        param=param,
    )


def pictures_beside(
    prompt: Prompt, images: PromptImages | None
) -> tuple[str | Sequence[int], list[Picture]]:
    """Return what is encoded of a prompt, or its ids, and read the images and the audio of a vLLM
    prompt object. Raises RequestError."""
    sources = [
        Source(value, MEDIA, MEDIUMS[name])
        for name, values in media_beside(prompt).items()
        for value in values
    ]
    check_read(sources, images, "this model")
    plain = unwrapped(prompt) if isinstance(prompt, Mapping) else prompt
    if images is None or not sources:
        return plain, []
    plain = written(plain, images) if isinstance(plain, str) else plain
    return plain, [images.read(each) for each in sources]


def check_whole(token_ids: Sequence[int]) -> None:
    """Raise RequestError for a prompt that may not be truncated: a part of an image is none."""
    if images_of(token_ids):
        raise RequestError(
            "a prompt with images or audio cannot be truncated",
            "Leave truncate_prompt_tokens out, or these.",
            param="truncate_prompt_tokens",
        )


def images_of(token_ids: Sequence[int]) -> tuple[ImagePart, ...]:
    """Return where a prompt's images are; none in most."""
    return token_ids.images if isinstance(token_ids, SeeingTokens) else ()


@frozen(eq=False)
class Source:
    """What a part of a message says that its image or audio is."""

    value: Any
    """An address, or what `LLM` takes besides."""
    param: str
    medium: Medium


def separated(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], list[Source]]:
    """Return the messages with nothing but the type in their parts of images and audio, and what
    these are. Messages without any are returned as they are. Raises RequestError."""
    sources, plain = list[Source](), list[Mapping[str, Any]]()
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) or not isinstance(content, Sequence):
            plain.append(message)
            continue
        parts = list[Any]()
        for j, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and (medium := MEDIUM_OF.get(kind)) is not None:
                param = str(part.get("param", f"messages[{i}].content[{j}]"))[:200]
                value = (source_of if medium is IMAGE else audio_of)(part, param)
                sources.append(Source(value, param, medium))
                part = {"type": medium.name}
            parts.append(part)
        plain.append({**message, "content": parts})
    if len(sources) > MOST_IMAGES:
        raise RequestError(
            f"there are {len(sources)} images, the limit is {MOST_IMAGES}",
            "Send fewer.",
            param="messages",
        )
    return (plain if sources else messages), sources


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
    """How prompts for a model have images, or audio."""

    opened: Opened
    files: PixelFiles | None = None
    """Of what this process reads itself: `LLM`'s, whose caller is trusted."""
    _preparers: dict[str, Prepares] = field(factory=dict, init=False)

    @classmethod
    def of(cls, opened: Opened) -> PromptImages | None:
        """None for a model that reads text only."""
        return cls(opened) if opened.plan.media else None

    def takes(self, medium: Medium) -> bool:
        """Whether the model reads it."""
        plan = self.opened.plan
        return (plan.images if medium is IMAGE else plan.audio) is not None

    def read(self, source: Source) -> Picture:
        """Read an image or audio in this process: a `Picture` as it is, an image of Pillow,
        samples, bytes, a path, or a `data:` URL. Raises RequestError, UnsupportedError."""
        value, param, plan = source.value, source.param, self.opened.plan
        if isinstance(value, Picture):
            return value
        decoded: Any
        if source.medium is IMAGE:
            decoded = opened_image(value, param)
        else:
            assert plan.audio is not None, "`check_read` looks"
            decoded = opened_audio(value, plan.audio, param)
        if self.files is None:
            self._preparers = preparers(self.opened)
            self.files = PixelFiles(sum(use.cache_bytes for use in plan.media))
        preparer = self._preparers[source.medium.name]
        for _ in range(3):
            if (known := self.files.find(preparer.digest(decoded))) is not None:
                return known
            prepared = preparer.prepare(decoded, self.files.folder, param)
            if (picture := self.files.adopt(prepared)) is not None:
                return picture
        raise AssertionError("nobody removes a file that was just written three times")


def read_all(
    messages: Sequence[Mapping[str, Any]], images: PromptImages | None, model: str
) -> tuple[Sequence[Mapping[str, Any]], list[Picture]]:
    """Return the messages without what their images and audio are, and these, read in this
    process. Raises RequestError."""
    messages, sources = separated(messages)
    check_read(sources, images, model)
    return messages, [images.read(source) for source in sources] if images else []


async def read_elsewhere(
    messages: Sequence[Mapping[str, Any]],
    images: PromptImages | None,
    see: Callable[[bytes, str, Medium], Awaitable[Picture]],
) -> Sequence[Mapping[str, Any]]:
    """Return the messages with images and audio that another process has read. Raises
    RequestError."""
    plain, sources = separated(messages)
    check_read(sources, images, "this model")
    if images is None:
        return plain
    use = images.opened.plan.audio

    def file(source: Source) -> bytes:
        if source.medium is IMAGE or use is None:
            return file_of(source.value, source.param)
        return audio_file(source.value, use, source.param)

    pictures = [
        each.value
        if isinstance(each.value, Picture)
        else await see(await asyncio.to_thread(file, each), each.param, each.medium)
        for each in sources
    ]
    return with_pictures(plain, pictures)


def with_pictures(
    messages: Sequence[Mapping[str, Any]], pictures: Sequence[Picture]
) -> Sequence[Mapping[str, Any]]:
    """Return `separated` messages with these images and audio."""
    if not pictures:
        return messages
    left = iter(pictures)

    def filled(part: Any) -> Any:
        return {**part, part["type"]: next(left)} if is_medium(part) else part

    return [
        {**message, "content": [filled(part) for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]


def check_read(sources: Sequence[Source], images: PromptImages | None, model: str) -> None:
    """Raise RequestError for an image or audio of a model that reads none."""
    for each in sources:
        medium, param = each.medium, each.param
        if images is None or not images.takes(medium):
            raise RequestError(
                f"{param} is {medium.noun}, and {lacks(model, medium, only_text=images is None)}",
                f"Leave it out, or {medium.remedy}",
                param=param,
                code="unsupported_parameter",
            )


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
