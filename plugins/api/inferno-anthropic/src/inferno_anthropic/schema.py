"""The bodies of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from inferno.server.api import Field
from inferno_anthropic import support
from inferno_anthropic.sampling import MessageSampling


@frozen(kw_only=True)
class CountTokensRequest:
    """The body of POST /v1/messages/count_tokens."""

    path: ClassVar[str] = "/v1/messages/count_tokens"
    rows: ClassVar[tuple[Field, ...]] = support.COUNT

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@frozen(kw_only=True)
class MessagesRequest(MessageSampling, CountTokensRequest):
    """The body of POST /v1/messages."""

    path: ClassVar[str] = "/v1/messages"
    rows: ClassVar[tuple[Field, ...]] = support.MESSAGES

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    session_ttl: float | None = None
    cache_control: dict[str, Any] | None = None
