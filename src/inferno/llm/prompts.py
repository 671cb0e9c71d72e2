"""What a caller may give as a prompt."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from inferno.errors import RequestError

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A string, token ids, or vLLM's {"prompt": string} and {"prompt_token_ids": ids}."""

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation in OpenAI's format."""


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
    """Return token ids as integers. Raises RequestError for anything else."""
    try:
        return tuple(map(operator.index, ids))
    except TypeError as error:
        raise RequestError(
            f"a prompt cannot be of type {type(ids).__name__}",
            "Give a string or a list of token ids.",
            param="prompt",
        ) from error
