"""OpenAI's Responses API, with its conversations and what is stored of both."""

from __future__ import annotations

from typing import Any

from inferno.server.responses import conversations, responses
from inferno.server.responses.schema import (
    ConversationRequest,
    ConversationUpdate,
    InputTokensRequest,
    ItemsRequest,
    ResponsesRequest,
)

HANDLERS = (
    responses.create_response,
    responses.count_input_tokens,
    responses.get_response,
    responses.delete_response,
    responses.cancel_response,
    responses.list_input_items,
    conversations.create_conversation,
    conversations.get_conversation,
    conversations.update_conversation,
    conversations.delete_conversation,
    conversations.create_items,
    conversations.list_items,
    conversations.get_item,
    conversations.delete_item,
)
BODIES: tuple[type[Any], ...] = (
    ResponsesRequest,
    InputTokensRequest,
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
)
