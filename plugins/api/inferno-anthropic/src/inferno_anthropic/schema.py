"""The bodies of Anthropic's Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen, make_class

from inferno.server.api import Field, parameters, sampling_fields
from inferno_anthropic import support

SAMPLING = tuple(p for p in parameters() if p.in_body and p.name not in support.OTHER_NAMES)
"""Sampling parameters that a message takes under their own names."""

if TYPE_CHECKING:

    class _Sampling:
        """Made at import."""

else:
    _Sampling = make_class("_Sampling", sampling_fields(SAMPLING), frozen=True, kw_only=True)


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
class MessagesRequest(_Sampling, CountTokensRequest):
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
