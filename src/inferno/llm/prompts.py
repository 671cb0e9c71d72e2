"""The forms in which callers give prompts."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from inferno.errors import RequestError


def unwrapped(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    """Return the ids, else the string, of a vLLM prompt object. Fields that would be ignored are
    an error."""
    unknown = sorted(prompt.keys() - {"prompt", "prompt_token_ids"})
    found: str | Sequence[int] | None = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if unknown or found is None:
        raise RequestError(
            f"invalid prompt object: it has {', '.join(unknown or prompt) or 'no fields'}",
            'Give {"prompt": string} or {"prompt_token_ids": ids}.',
            param="prompt",
        )
    return found


def integers(ids: Any) -> tuple[int, ...]:
    """Return the ids as integers. Raises RequestError."""
    try:
        return tuple(map(operator.index, ids))
    except TypeError as error:
        raise RequestError(
            f"a prompt cannot be of type {type(ids).__name__}",
            "Give a string or a list of token ids.",
            param="prompt",
        ) from error
