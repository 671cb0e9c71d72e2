"""Drops the oldest turns of a conversation that does not fit, for requests that allow it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import asdict, evolve

from inferno.errors import CONTEXT_LENGTH_EXCEEDED, RequestError
from inferno.llm.images import separated
from inferno.llm.overflow import room, windows
from inferno.server.fields.schema import ChatRequest
from inferno.server.hosting.served_model import ChatPrompt, ServedModel

TRUNCATIONS = ("auto", "disabled")


async def encode_fitting(
    body: ChatRequest, model: ServedModel, tools: Sequence[dict[str, Any]], max_tokens: int | None
) -> ChatPrompt:
    """Render and tokenize a conversation, without its oldest turns if the request has `truncation`
    auto and all of it does not fit. Names dropped messages in `ignored`. Raises RequestError."""
    if body.truncation not in (None, *TRUNCATIONS):
        raise RequestError(
            f"truncation is {body.truncation[:40]!r}",
            f"Use one of: {', '.join(TRUNCATIONS)}.",
            param="truncation",
        )
    if body.truncation != "auto":
        return await model.encode_chat(body, tools)
    limit = room(model.preprocessor.max_model_len, max_tokens)
    prompt = await _attempt(body, model, tools)
    if prompt is not None and len(prompt.token_ids) <= limit:
        return prompt
    roles = [message.role for message in body.messages]
    sizes = await asyncio.to_thread(_sizes, body, model)
    window: list[int] = []
    for window in windows(roles, sizes, limit):
        part = evolve(body, messages=[body.messages[i] for i in window])
        prompt = await _attempt(part, model, tools)
        if prompt is not None and len(prompt.token_ids) <= limit:
            break
    if prompt is None:  # the last turn alone is too long
        return await model.encode_chat(body, tools)
    dropped = (f"messages[{i}]" for i in range(len(roles)) if i not in window)
    return evolve(prompt, ignored=(*prompt.ignored, *dropped))


async def _attempt(
    body: ChatRequest, model: ServedModel, tools: Sequence[dict[str, Any]]
) -> ChatPrompt | None:
    """Return None if the conversation is so long that it is not even tokenized."""
    try:
        return await model.encode_chat(body, tools)
    except RequestError as error:
        if error.code != CONTEXT_LENGTH_EXCEEDED:
            raise
        return None


def _sizes(body: ChatRequest, model: ServedModel) -> list[int]:
    encode = model.needed_tokenizer("messages").encode
    plain, _ = separated([asdict(m, filter=_is_given) for m in body.messages])
    texts = (msgspec.json.encode(message).decode() for message in plain)
    return [len(encode(text, add_special_tokens=False)) for text in texts]


def _is_given(attribute: Any, value: Any) -> bool:
    return value is not None
