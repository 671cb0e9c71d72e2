"""The bodies of requests and of errors. null means "not given". Sampling parameters are the fields
of `SamplingFields`, and `sampling_values` reads those that are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from attrs import frozen
from litestar.openapi.datastructures import ResponseSpec

from inferno.errors import RequestError
from inferno.request.sampling_params import Parameter, parameters
from inferno.server.chat.structured import StructuredFields
from inferno.server.fields import others, support
from inferno.server.fields.sampling import SamplingFields
from inferno.server.fields.support import Field
from inferno.server.http.errors import unsupported

_PARAMETERS = parameters()


@frozen(kw_only=True)
class StreamOptions:
    include_usage: bool | None = None
    """Send a final event with the token counts."""
    continuous_usage_stats: bool | None = None
    """Send the token counts so far in every event."""


@frozen(kw_only=True)
class Message:
    """One message, passed to the chat template unchanged but without nulls."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


@frozen(kw_only=True)
class GenerationRequest(SamplingFields, StructuredFields):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    session_ttl: float | None = None
    timeout: float | None = None
    data_parallel_rank: int | None = None
    routed_dp_rank: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def engine(self) -> int | None:
        """Which of several engines is to answer."""
        named = self.data_parallel_rank
        return self.routed_dp_rank if named is None else named


def sampling_values(
    data: GenerationRequest, known: Iterable[Parameter] = _PARAMETERS
) -> dict[str, Any]:
    """Return the sampling parameters given in a body, by `SamplingParams`' names. `SamplingParams`
    checks their values. Raises RequestError."""
    values: dict[str, Any] = {
        p.name: _biases(p.name, value) if p.type == Mapping[int, float] else value
        for p in known
        if p.in_body and (value := getattr(data, p.name)) is not None
    }
    if (spec := data.spec(values.pop("structured_outputs", None))) is not None:
        values["structured_outputs"] = spec
    if data.stream and "prompt_logprobs" in values:
        raise unsupported("prompt_logprobs", "They are not streamed: leave stream out.")
    return values


def _biases(param: str, raw: Mapping[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): bias for token, bias in raw.items()}
    except ValueError as error:
        raise RequestError(
            f"the keys of {param} must be token ids", "Find them with /tokenize.", param=param
        ) from error
    if any(not -100 <= bias <= 100 for bias in biases.values()):
        raise RequestError(
            f"{param} is out of range", "It must be between -100 and 100.", param=param
        )
    return biases


@frozen(kw_only=True)
class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    path: ClassVar[str] = "/v1/chat/completions"
    rows: ClassVar[tuple[Field, ...]] = (*support.CHAT, *others.CHAT)

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking: bool | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    truncation: str | None = None


@frozen(kw_only=True)
class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    path: ClassVar[str] = "/v1/completions"
    rows: ClassVar[tuple[Field, ...]] = (*support.COMPLETIONS, *others.COMPLETIONS)

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


@frozen(kw_only=True)
class TokenizeRequest:
    """The body of POST /tokenize: a string in `prompt` (vLLM) or `content` (llama.cpp), or
    messages."""

    path: ClassVar[str] = "/tokenize"
    rows: ClassVar[tuple[Field, ...]] = support.TOKENIZE

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


@frozen(kw_only=True)
class DetokenizeRequest:
    """The body of POST /detokenize."""

    path: ClassVar[str] = "/detokenize"
    rows: ClassVar[tuple[Field, ...]] = support.DETOKENIZE

    tokens: list[int]
    model: str | None = None


@frozen(kw_only=True)
class Error:
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


@frozen(kw_only=True)
class ErrorBody:
    """The body of every error response."""

    error: Error


ERROR_RESPONSES = {
    status: ResponseSpec(ErrorBody, description=text, generate_examples=False)
    for status, text in {
        400: "Invalid request, or a feature that this server does not support",
        401: "API key missing or wrong",
        404: "Model not found",
        413: "The body is too large",
        429: "Too many requests are waiting",
        503: "The engine is restarting, or the server is shutting down",
    }.items()
}
"""Error responses in the OpenAPI schema."""
