"""The bodies of the Responses API."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from inferno.server.fields.support import Field
from inferno.server.responses import support
from inferno.server.responses.sampling import ResponseSampling


@frozen(kw_only=True)
class ResponsesRequest(ResponseSampling):
    """The body of POST /v1/responses."""

    path: ClassVar[str] = "/v1/responses"
    rows: ClassVar[tuple[Field, ...]] = support.RESPONSES

    input: str | list[dict[str, Any]] | None = None
    model: str | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    stream: bool | None = None
    background: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    session_ttl: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: str | None = None


@frozen(kw_only=True)
class InputTokensRequest(ResponsesRequest):
    """The body of POST /v1/responses/input_tokens: a response that is not generated."""

    path: ClassVar[str] = "/v1/responses/input_tokens"


@frozen(kw_only=True)
class ConversationRequest:
    """The body of POST /v1/conversations."""

    path: ClassVar[str] = "/v1/conversations"
    rows: ClassVar[tuple[Field, ...]] = support.CONVERSATION

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


@frozen(kw_only=True)
class ConversationUpdate:
    """The body of POST /v1/conversations/{id}."""

    path: ClassVar[str] = "/v1/conversations/{id}"
    rows: ClassVar[tuple[Field, ...]] = support.CONVERSATION_UPDATE

    metadata: dict[str, Any] | None = None


@frozen(kw_only=True)
class ItemsRequest:
    """The body of POST /v1/conversations/{id}/items."""

    path: ClassVar[str] = "/v1/conversations/{id}/items"
    rows: ClassVar[tuple[Field, ...]] = support.ITEMS

    items: list[dict[str, Any]]
