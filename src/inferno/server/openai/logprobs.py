"""Log-probabilities in the formats of both endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from inferno.request.requests import Logprobs

if TYPE_CHECKING:
    from inferno.text import Tokenizer

_LOWEST = -9999.0
"""OpenAI's value for impossible tokens: JSON has no infinity."""


def token_text(tokenizer: Tokenizer | None, token_id: int) -> str:
    return f"token_id:{token_id}" if tokenizer is None else tokenizer.token_text(token_id)


def chat(tokenizer: Tokenizer | None, positions: Iterable[Logprobs]) -> list[dict[str, Any]]:
    """Build `choices[].logprobs.content` of chat completions."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(tokenizer, token_id),
            "logprob": max(logprob, _LOWEST),
            "bytes": None if tokenizer is None else list(tokenizer.token_bytes(token_id)),
        }

    return [
        {
            **entry(p.token_id, p.logprob),
            "top_logprobs": [entry(i, logprob) for i, logprob in p.top],
        }
        for p in positions
    ]


def completion(
    tokenizer: Tokenizer | None,
    positions: Sequence[Logprobs | None],
    token_ids: Sequence[int],
    offset: int,
    *,
    listed: bool,
) -> tuple[dict[str, Any], int]:
    """Build `choices[].logprobs` of text completions, and return it with the next offset. The first
    position of an echoed prompt has no probability: null. Unless `listed`, `top_logprobs` is
    null."""
    tokens = [token_text(tokenizer, i) for i in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    shape = {
        "tokens": tokens,
        "token_logprobs": [None if p is None else max(p.logprob, _LOWEST) for p in positions],
        "top_logprobs": [None if p is None else _top(tokenizer, p) for p in positions]
        if listed
        else None,
        "text_offset": offsets,
    }
    return shape, offset


def prompt(
    tokenizer: Tokenizer | None, positions: Iterable[Logprobs | None]
) -> list[dict[str, Any] | None]:
    """Build `prompt_logprobs` as in vLLM: by token id, null for the first token."""
    return [None if p is None else _ranked(tokenizer, p) for p in positions]


def _top(tokenizer: Tokenizer | None, position: Logprobs) -> dict[str, float]:
    logprobs = {token_text(tokenizer, i): max(logprob, _LOWEST) for i, logprob in position.top}
    # As in OpenAI's API, the sampled token is listed even if it is not among the most likely.
    logprobs.setdefault(token_text(tokenizer, position.token_id), max(position.logprob, _LOWEST))
    return logprobs


def _ranked(tokenizer: Tokenizer | None, position: Logprobs) -> dict[str, Any]:
    rows = [(position.token_id, position.logprob, position.rank)]
    rows += [
        (i, logprob, rank)
        for rank, (i, logprob) in enumerate(position.top, 1)
        if i != position.token_id
    ]
    return {
        str(i): {
            "logprob": max(logprob, _LOWEST),
            "rank": rank,
            "decoded_token": token_text(tokenizer, i),
        }
        for i, logprob, rank in rows
    }
