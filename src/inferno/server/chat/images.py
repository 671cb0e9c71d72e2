"""Images of a conversation: taken from its messages, and read within the server's limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferno.errors import RequestError
from inferno.images.decoding import data_of, refused
from inferno.images.pixels import Picture
from inferno.llm.images import IMAGE_PARTS, no_images, separated
from inferno.server.chat.fetching import ImageFetcher

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

_LARGE = 2**21
"""Characters whose decoding, of a millisecond a million, would delay every stream. A thread that
has to be waited for takes longer than fewer."""
DETAILS = ("auto", "low", "high", "original")
"""Values of `detail`, which change nothing: the server's limit of tokens holds for all."""


async def read_images(
    messages: list[dict[str, Any]], llm: AsyncLLM, fetcher: ImageFetcher
) -> tuple[Sequence[Mapping[str, Any]], list[Picture]]:
    """Return the messages with their images' places, and the images in order. Raises RequestError
    for those that cannot be read, and where the model sees none."""
    for i, message in enumerate(messages):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if is_image_part(part):
                _check_detail(part, str(part.get("param", f"messages[{i}].content[{j}]"))[:200])
    plain, sources = separated(messages)
    if not sources:
        return messages, []
    if llm.preprocessor.images is None:
        raise no_images(llm.model_id, sources[0][1])
    if len(sources) > (most := fetcher.limits.max_images):
        raise refused(
            f"messages have {len(sources)} images, the limit is {most}",
            "messages",
            "Send fewer, or start the server with a larger --max-images.",
        )
    return plain, [await _read(source, param, llm, fetcher) for source, param in sources]


def is_image_part(part: Any) -> bool:
    """Whether a part of a message's content is an image."""
    return isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS


async def _read(source: Any, param: str, llm: AsyncLLM, fetcher: ImageFetcher) -> Picture:
    if not isinstance(source, str):
        cause = f"{param} has no address of an image"
        raise refused(cause, param, 'Give "image_url": {"url": "data:image/png;base64,..."}.')
    if source[:5].lower() == "data:":
        taken = source, param, fetcher.limits.max_bytes
        large = len(source) > _LARGE
        data = await asyncio.to_thread(data_of, *taken) if large else data_of(*taken)
    elif source[:8].lower().startswith(("http://", "https://")):
        data = await fetcher.fetched(source, param)
    else:
        cause = f"{param} is neither a data: URL nor an address in the network"
        raise refused(cause, param, "Write data:image/png;base64,...")
    return await llm.see(data, param)


def _check_detail(part: Mapping[str, Any], param: str) -> None:
    given = part.get("image_url")
    detail = given.get("detail") if isinstance(given, Mapping) else part.get("detail")
    if detail is not None and detail not in DETAILS:
        raise RequestError(
            f"{param}: detail is {str(detail)[:40]!r}",
            f"Use one of {', '.join(DETAILS)}.",
            param=param,
        )
