"""What a caller may give as a prompt."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias, cast

from inferno.errors import RequestError
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint, hint_of

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A string, token ids, or vLLM's {"prompt": string} and {"prompt_token_ids": ids}; the tokens of
two texts have `SECOND` too: at which index the second begins."""
SECOND = "second_text_at"
MEDIA = "multi_modal_data"


Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation in OpenAI's format."""

Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
"""For all prompts of a call, or for each."""

Sessions: TypeAlias = str | Sequence[str | None] | None
"""The session of all prompts of a call, or of each."""


def unwrapped(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    """Return the ids, else the string, of a vLLM prompt object. Fields that would be ignored are
    an error."""
    unknown = sorted(prompt.keys() - {"prompt", "prompt_token_ids", SECOND, MEDIA})
    content: str | Sequence[int] | None = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if unknown or content is None:
        raise RequestError(
            f"invalid prompt object: it has {', '.join(unknown or prompt) or 'no fields'}",
            'Give {"prompt": string} or {"prompt_token_ids": ids}.',
            param="prompt",
        )
    return content


def media_beside(prompt: Prompt) -> dict[str, list[Any]]:
    """Return the images and the audio of a vLLM prompt object: its `multi_modal_data` has one, or
    a list, under "image", and under "audio", where a tuple is samples and their rate. Raises
    RequestError."""
    given = prompt.get(MEDIA) if isinstance(prompt, Mapping) else None
    if given is None:
        return {}
    known = isinstance(given, Mapping) and given and set(given) <= {"image", "audio"}
    if not known or any(each is None for each in given.values()):
        raise RequestError(
            f"{MEDIA} has no image and no audio, or something else",
            'Give {"image": image} or {"image": [image, ...]}, and {"audio": ...} alike.',
            param="prompt",
        )
    lists = {"image": list | tuple, "audio": list}
    return {
        name: list(media) if isinstance(media, lists[name]) else [media]
        for name, media in given.items()
    }


def second_of(prompt: Prompt, length: int) -> int:
    """Return where the second text of a prompt of `length` tokens begins; 0 if it is one text.
    Raises RequestError."""
    second = prompt.get(SECOND, 0) if isinstance(prompt, Mapping) else 0
    if not isinstance(second, int) or not 0 <= second < length:
        raise RequestError(
            f"{SECOND} is {second!r}",
            f"It is an index of the prompt's tokens, 1 to {length - 1}.",
            param="prompt",
        )
    return second


def with_seconds(prompts: Sequence[Sequence[int]], seconds: Sequence[int]) -> Sequence[Prompt]:
    """Return prompts that say where their second texts begin; without `seconds` as they are."""
    if not any(seconds):
        return prompts
    pairs = zip(prompts, seconds, strict=True)
    return [{"prompt_token_ids": ids, SECOND: second} for ids, second in pairs]


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


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """List the prompts: a list of integers is a single one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many = list(prompts)
    return (
        [cast(Prompt, many)] if many and isinstance(many[0], Integral) else cast(list[Prompt], many)
    )


def params_of(params: Params, count: int) -> list[SamplingParams | None]:
    """List one set of parameters per prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not all(each is None or isinstance(each, SamplingParams) for each in params):
        raise RequestError(
            "the sampling params are not SamplingParams",
            "Give SamplingParams(...), or a list of them.",
        )
    if len(params) != count:
        raise RequestError(
            f"there are {count} prompts, but {len(params)} sampling params",
            "Give one for all prompts, or one for each.",
            param="sampling_params",
        )
    return list(params)


def hints_of(session: Sessions, count: int) -> list[SessionHint | None]:
    """List the session of each prompt."""
    if session is None or isinstance(session, str):
        return [hint_of(session)] * count
    if len(session) != count:
        raise RequestError(
            f"there are {count} prompts, but {len(session)} sessions",
            "Name one for all prompts, or one for each.",
            param="session",
        )
    return [hint_of(name) for name in session]


def is_one_conversation(messages: Messages | Sequence[Messages]) -> bool:
    """Whether these are the messages of one conversation, and not several."""
    return not messages or isinstance(messages[0], Mapping)
