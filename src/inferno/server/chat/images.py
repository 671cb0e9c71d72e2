"""Images and audio of a conversation: taken from its messages, and read within the server's
limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferno.errors import RequestError
from inferno.images.decoding import data_of, refused
from inferno.images.mediums import IMAGE
from inferno.images.pixels import Picture
from inferno.llm.images import MEDIUM_OF, Source, check_read, separated
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
    """Return the messages with the places of their images and audio, and these in order. Raises
    RequestError for those that cannot be read, and where the model reads none."""
    for i, message in enumerate(messages):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if is_medium_part(part):
                _check_detail(part, str(part.get("param", f"messages[{i}].content[{j}]"))[:200])
    plain, sources = separated(messages)
    if not sources:
        return messages, []
    check_read(sources, llm.preprocessor.images, llm.model_id)
    if len(sources) > (most := fetcher.limits.max_images):
        raise refused(
            f"messages have {len(sources)} images or pieces of audio, the limit is {most}"
            if any(each.medium is not IMAGE for each in sources)
            else f"messages have {len(sources)} images, the limit is {most}",
            "messages",
            "Send fewer, or start the server with a larger --max-images.",
        )
    return plain, [await _read(source, llm, fetcher) for source in sources]


def is_medium_part(part: Any) -> bool:
    """Whether a part of a message's content is an image or audio."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in MEDIUM_OF


async def _read(source: Source, llm: AsyncLLM, fetcher: ImageFetcher) -> Picture:
    url, param, medium = source.value, source.param, source.medium
    if not isinstance(url, str):
        cause = f"{param} has no address of {medium.noun}"
        remedy = f'Give "{medium.name}_url": {{"url": "{medium.example}"}}.'
        raise refused(cause, param, remedy, medium)
    if url[:5].lower() == "data:":
        taken = url, param, fetcher.limits.most_bytes(medium), medium
        large = len(url) > _LARGE
        data = await asyncio.to_thread(data_of, *taken) if large else data_of(*taken)
    elif url[:8].lower().startswith(("http://", "https://")):
        data = await fetcher.fetched(url, param, medium)
    else:
        cause = f"{param} is neither a data: URL nor an address in the network"
        raise refused(cause, param, f"Write {medium.example}.", medium)
    return await llm.see(data, param, medium)


def _check_detail(part: Mapping[str, Any], param: str) -> None:
    given = part.get("image_url")
    detail = given.get("detail") if isinstance(given, Mapping) else part.get("detail")
    if detail is not None and detail not in DETAILS:
        raise RequestError(
            f"{param}: detail is {str(detail)[:40]!r}",
            f"Use one of {', '.join(DETAILS)}.",
            param=param,
        )
